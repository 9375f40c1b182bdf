"""What the environment of each runtime holds: asked of a child in its own interpreter, within a limit."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Container, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backend.child.handle import ChildProcess, Spawn, spawn
from backend.child.wire_protocol import Header
from backend.cli.doctor.facts import Flavour, Interpreter, RuntimeFacts, TorchBuild, Unmet, Written

LIMIT_S = 15.0
_SHARED = TypeAdapter(dict[str, list[Flavour]])
_WRITTEN = TypeAdapter(dict[str, Written])
_UNMET = TypeAdapter(list[Unmet])


async def runtime_facts(
    pythons: Mapping[str, str],
    start: Spawn = spawn,
    limit_s: float = LIMIT_S,
    kept: Container[str] = (),
) -> list[RuntimeFacts]:
    """The facts of all runtimes, by name → interpreter; `kept` names those that Touchstone made.

    Raises nothing: what fails is the `trouble` of its runtime.
    """
    asked = await asyncio.gather(*(_asked(name, python, start, limit_s) for name, python in pythons.items()))
    return [dataclasses.replace(one, kept=one.name in kept) for one in asked]


async def _asked(name: str, python: str, start: Spawn, limit_s: float) -> RuntimeFacts:
    try:
        frame = await _frame(python, start, limit_s)
        return _read(name, python, frame)
    except (OSError, RuntimeError, TimeoutError) as error:
        why = f"it gave no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else _words(error)
        return RuntimeFacts(name, python, trouble=why)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return RuntimeFacts(name, python, trouble="its answer makes no sense")


async def _frame(python: str, start: Spawn, limit_s: float) -> Header:
    """The one frame of the child. Raises RuntimeError with how it ended, if there was none."""
    child = ChildProcess(start(python, ["packages"]), asyncio.get_running_loop())
    try:
        async with asyncio.timeout(limit_s):
            frame = await child.receive()
            if frame is None:
                await child.ended()
                raise RuntimeError(child.exit_summary())
            return frame
    finally:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.ended()


def _read(name: str, python: str, frame: Header) -> RuntimeFacts:
    return RuntimeFacts(
        name,
        python,
        interpreter=TypeAdapter(Interpreter).validate_python(frame["interpreter"]),
        packages=frame["packages"],
        shared=_SHARED.validate_python(frame["shared"]),
        on_disk=_WRITTEN.validate_python(frame["on_disk"]),
        torch=torch_build(frame["builds"].get("torch")),
        unmet=_UNMET.validate_python(frame["unmet"]),
        leftovers=frame["leftovers"],
    )


def torch_build(fields: dict[str, Any] | None) -> TorchBuild | None:
    """The fields of torch's version file that matter; versions differ in which of them they have."""
    if not fields:
        return None
    kinds = [field.name for field in dataclasses.fields(TorchBuild) if field.name != "version"]
    return TorchBuild(fields.get("__version__"), **{kind: fields.get(kind) for kind in kinds})


def _words(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
