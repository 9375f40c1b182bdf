"""The packages of each runtime's environment, reported by a child process in its interpreter within a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Container, Mapping

from pydantic import TypeAdapter, ValidationError

from backend.child.handle import ChildStartError, Spawn, spawn
from backend.child.spawner import spawn_child
from backend.child.wire_protocol import Frame
from backend.cli.doctor.facts import Flavour, Interpreter, RuntimeFacts, TorchBuild, Unmet, Written

TIMEOUT_S = 15.0
_SHARED = TypeAdapter(dict[str, list[Flavour]])
_WRITTEN = TypeAdapter(dict[str, Written])
_UNMET = TypeAdapter(list[Unmet])


async def runtime_facts(
    pythons: Mapping[str, str],
    start: Spawn = spawn,
    limit_s: float = TIMEOUT_S,
    kept: Container[str] = (),
) -> list[RuntimeFacts]:
    """Return the facts of all runtimes (name → interpreter). `kept` names those that Touchstone installed.

    Does not raise: an error becomes the `trouble` of its runtime.
    """
    facts = await asyncio.gather(*(_query(name, python, start, limit_s) for name, python in pythons.items()))
    return [dataclasses.replace(runtime, kept=runtime.name in kept) for runtime in facts]


async def _query(name: str, python: str, start: Spawn, limit_s: float) -> RuntimeFacts:
    try:
        frame = await _frame(python, start, limit_s)
        return _read(name, python, frame)
    except (ChildStartError, OSError, RuntimeError, TimeoutError) as error:
        why = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else _message(error)
        return RuntimeFacts(name, python, trouble=why)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return RuntimeFacts(name, python, trouble="its answer is malformed")


async def _frame(python: str, start: Spawn, limit_s: float) -> Frame:
    """Return the one frame that the child sends. Raises RuntimeError with its exit if it sends none."""
    child = await spawn_child(start, python, ["packages"])
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


def _read(name: str, python: str, frame: Frame) -> RuntimeFacts:
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


def torch_build(fields: Mapping[str, str | None] | None) -> TorchBuild | None:
    """Return the relevant fields of torch's version file. Optional: None without the file; older versions lack some."""
    if not fields:
        return None
    kinds = [field.name for field in dataclasses.fields(TorchBuild) if field.name != "version"]
    return TorchBuild(fields.get("__version__"), **{kind: fields.get(kind) for kind in kinds})


def _message(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, ChildStartError) else error
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(error)
