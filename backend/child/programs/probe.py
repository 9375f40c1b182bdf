"""The probe program: `probe list RUNTIME [BACKEND …]` enumerates devices, `probe prove ORDER` computes on one.

`list` shows every card, also those that environment variables hide; `list-visible` respects the variables, and
`list-with NAME=VALUE` sets one variable alone.

The frames are in `wire_protocol.py`. A `step` frame precedes each risky step, so that the parent can attribute a crash
or a hang. `list` sends `plan`, then for each backend `listed`, `absent`, `missing` or `failed`, then `end`. `prove`
sends `proved`, then `engines` after each engine that loads and `no_engine` for one that does not, or that needs a data
type which the device computes wrongly; or `wrong`, `absent`, `missing`, `failed`. After `end`, `list` waits for the end
of its input, or for one order to prove.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from backend.child.wire_protocol import Channel, Frame
from backend.common.known_errors.table import telling_line
from backend.common.types import Proof
from backend.devices import (
    INDEX_LIMIT,
    DetectedDevice,
    DeviceAbsent,
    UnusableDataType,
    WrongResult,
    backends,
    backends_of,
    detected_device_from,
    is_installed,
    is_unsupported,
    libraries,
    mechanism,
    prove,
    show_all_devices,
    show_only,
    watched_cards,
)
from backend.engines import engines, load_engine, serves

_CHILD = Path(__file__).resolve().parents[1]


def main(channel: Channel, arguments: list[str]) -> int:
    """Run one probe; exit 0 when all frames were sent."""
    action, *rest = arguments
    if action == "prove":
        _prove(channel, json.loads(rest[0]))
    else:
        if action != "list-visible":
            show_all_devices()
        if action == "list-with":
            assignment, *rest = rest
            name, _, value = assignment.partition("=")
            os.environ[name] = value
        faults = json.loads(rest.pop()) if rest[-1].startswith("{") else {}
        _list(channel, rest[0], rest[1:], faults)
        channel.send({"op": "end"})
        if action == "list" and (order := channel.receive()):  # the library is imported: a proof need not repeat it
            _prove(channel, json.loads(order[0]["arguments"][1]))
    # Skip the shutdown of libraries: some crash there.
    os._exit(0)


def _list(channel: Channel, runtime: str, only: list[str], faults: dict[str, dict[str, str]]) -> None:
    """List the devices of each backend through the first library of this environment that reaches it.

    `faults`: why cards are not described, by backend and position.
    """
    plan: list[tuple[str, list[str]]] = []
    for library in libraries():
        planned = [name for _, names in plan for name in names]
        reached = [name for name in backends_of(library, runtime) if _may_reach(name, library)]
        names = [name for name in reached if name not in planned and (not only or name in only)]
        if names and is_installed(library):
            plan.append((library, names))
    channel.send({"op": "plan", "backends": [name for _, names in plan for name in names]})
    for library, names in plan:
        access = mechanism(names[0], library)
        channel.send({"op": "step", "what": f"importing {library}", "backends": names})
        if not _try(channel, names, lambda access=access, library=library: access.load(library)):  # type: ignore[misc]
            continue
        for name in names:
            channel.send({"op": "step", "what": f"listing {name} devices", "backends": [name]})
            known = {int(position): fault for position, fault in faults.get(name, {}).items()}
            _try(channel, [name], partial(_listed, channel, name, library, known))


def _may_reach(name: str, library: str) -> bool:
    """Return whether a library can reach a backend on this system: builds of ggml are made for one system."""
    facts = backends()[name]
    return facts.ggml is None or facts.ggml.library != library or sys.platform in facts.systems


def _listed(channel: Channel, name: str, library: str, faults: dict[int, str]) -> None:
    def on_card(position: int) -> None:
        if position < INDEX_LIMIT:  # further cards have no id; a child may send 1,000 frames
            what = f"describing {name} card {position}"
            channel.send({"op": "step", "what": what, "backends": [name], "card": position})

    access = mechanism(name, library)
    with watched_cards(on_card, faults):
        detected = access.enumerate_devices(backends()[name], library)
    if not detected:
        raise DeviceAbsent("it lists no device")
    frame = {"op": "listed", "backends": [name], "library": library, "versions": access.versions(library)}
    devices = [asdict(device) for device in detected[:INDEX_LIMIT]]
    channel.send({**frame, "devices": devices, "left_out": len(detected) - len(devices)})


def _prove(channel: Channel, order: Frame) -> None:
    backend, device, runtime = order["backend"], detected_device_from(order["found"]), order["runtime"]
    show_only(backend, device)
    access = mechanism(backend, device.library)
    channel.send({"op": "step", "what": f"importing {device.library}", "backends": [backend]})
    if not _try(channel, [backend], lambda: access.load(device.library)):
        return
    proofs: list[Proof] = []
    if not _try(channel, [backend], lambda: proofs.append(_proved(channel, access, order["device"], device))):
        return
    checked: dict[str, dict[str, str]] = {}
    # Engines whose library is imported come first: the parent offers the device with those that are checked.
    for engine in sorted(engines().values(), key=lambda engine: engine.library not in sys.modules):
        if backend not in engine.backends or not serves(engine, runtime):
            continue
        channel.send({"op": "step", "what": f"loading {engine.library}", "backends": [backend]})
        refused = {"op": "no_engine", "engine": engine.name}
        try:
            engine_versions = load_engine(engine.name).check()
        except (ImportError, OSError) as error:
            channel.send({**refused, "detail": _one_line(error), "data_type": None})
        except UnusableDataType as error:
            channel.send({**refused, "detail": str(error), "data_type": error.dtype})
        else:
            unusable = proofs[0].unusable
            dtype = engine.unusable_type(backend, proofs[0])
            if engine.proves_itself:
                channel.send({"op": "step", "what": f"computing with {engine.library}", "backends": [backend]})
                unusable = _proved_by_engine(order, engine.name)
                dtype = next(iter(unusable), None)
            if dtype:
                channel.send({**refused, "detail": unusable[dtype], "data_type": dtype})
            else:
                checked[engine.name] = engine_versions
        channel.send(
            {"op": "engines", "engines": checked}
        )  # after each, so that an engine that hangs does not lose the others


def _proved_by_engine(order: Frame, engine: str) -> dict[str, str]:
    """Compute through the engine's library in another process; return why data types are unusable.

    The parent ends that process with this one, so a hang ends like that of any step.
    """
    request = json.dumps({**order, "engine": engine})
    done = subprocess.run([sys.executable, "-I", str(_CHILD), "prove_engine", request], capture_output=True, text=True)
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        line = telling_line(done.stderr.splitlines()) or ""
        result = {"wrong": f"its process ended with {how}{f': {line[:300]}' if line else ''}"}
    unusable: dict[str, str] = result.get("unusable") or {}
    return {"float32": f"{engine} fails on this device ({result['wrong']})"} if "wrong" in result else unusable


def _proved(channel: Channel, access: Any, device_id: str, detected: DetectedDevice) -> Proof:
    backend = device_id.partition(":")[0]

    def step(what: str) -> None:
        channel.send({"op": "step", "what": what, "backends": [backend]})

    step(f"computing on {device_id}")
    proof = prove(backend, detected, lambda dtype: step(f"computing on {device_id} in {dtype}"))
    step(f"reading the free memory of {device_id}")
    free = _free_bytes(access, backend, detected)
    channel.send({"op": "proved", "proof": asdict(proof), "memory_free_bytes": free})
    return proof


def _free_bytes(access: Any, backend: str, detected: DetectedDevice) -> int | None:
    """Return the free memory, None if the library cannot report it. Raises what a failing device raises."""
    try:
        free: int | None = access.free_bytes(backends()[backend], detected)
    except Exception as error:
        if not is_unsupported(error):
            raise
        return None
    return free


def _try(channel: Channel, names: Iterable[str], work: Callable[[], object]) -> bool:
    """Call `work` and return whether it succeeded. An exception becomes a frame; only a crash is silent."""
    about = {"backends": list(names)}
    try:
        work()
    except WrongResult as error:
        channel.send({"op": "wrong", **about, "detail": str(error)})
    except DeviceAbsent as error:
        channel.send({"op": "absent", **about, "detail": str(error), "quiet": error.quiet})
    except (ImportError, OSError) as error:
        channel.send({"op": "missing", **about, "detail": _one_line(error)})
    except Exception as error:  # noqa: BLE001 (the border of the process: the parent decides what it means)
        channel.send({"op": "failed", **about, "detail": _one_line(error)})
    else:
        return True
    return False


def _one_line(error: BaseException) -> str:
    """Return the exception and its cause in one line, since libraries write long messages.

    The line is the first that shows a known error, else the first.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {(telling_line(lines) or lines[0])[:500]}" if lines else type(error).__name__
    cause = error.__cause__ or error.__context__
    return text if cause is None or str(cause) in text else f"{text} ({_one_line(cause)})"
