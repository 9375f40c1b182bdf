"""The probe program: `probe list RUNTIME [BACKEND …]` enumerates devices, `probe prove ORDER` computes on one.

`list` shows every card, whatever variables hide it; `list-visible` shows what they leave.

Child → parent, so that whatever happens next can be named: `step {what, backends}` before each risky thing.
`list` sends `plan {backends}` (those whose library is installed), then for each `listed {backends, library, versions,
devices, left_out}`, `absent {backends, detail, quiet}`, `missing {backends, detail}` for an import or a library that
fails, or `failed {backends, detail}`; and `end`. `prove` sends `proved {proof, memory_free_bytes}` and after each
engine `engines {engines}`, those that load so far, with `no_engine {engine, detail}` for one that does not; or
`wrong`, `absent`, `missing`, `failed`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from backend.child.wire_protocol import Channel
from backend.devices import (
    INDEX_LIMIT,
    DeviceAbsent,
    WrongResult,
    backends,
    backends_of,
    detected_device_from,
    libraries,
    mechanism,
    prove,
    show_all_devices,
    show_only,
)
from backend.engines import engines, load_engine, serves


def main(channel: Channel, arguments: list[str]) -> int:
    """Runs one probe and exits 0 when it could say what it found."""
    action, *rest = arguments
    if action == "prove":
        _prove(channel, json.loads(rest[0]))
    else:
        if action == "list":
            show_all_devices()
        _list(channel, rest[1:])
        channel.send({"op": "end"})
    # What libraries do while the interpreter ends is of no interest any more, and some crash there.
    os._exit(0)


def _list(channel: Channel, only: list[str]) -> None:
    plan = [(library, [name for name in backends_of(library) if not only or name in only]) for library in libraries()]
    plan = [(library, names) for library, names in plan if names and _installed(library)]
    channel.send({"op": "plan", "backends": [name for _, names in plan for name in names]})
    for library, names in plan:
        here = mechanism(names[0], library)
        channel.send({"op": "step", "what": f"importing {library}", "backends": names})
        if not _told(channel, names, lambda here=here, library=library: here.load(library)):  # type: ignore[misc]
            continue
        for name in names:
            channel.send({"op": "step", "what": f"listing {name} devices", "backends": [name]})
            _told(channel, [name], lambda name=name, library=library: _listed(channel, name, library))  # type: ignore[misc]


def _listed(channel: Channel, name: str, library: str) -> None:
    here = mechanism(name, library)
    found = here.enumerate_devices(backends()[name], library)
    if not found:
        raise DeviceAbsent("it lists no device")
    frame = {"op": "listed", "backends": [name], "library": library, "versions": here.versions(library)}
    devices = [asdict(device) for device in found[:INDEX_LIMIT]]
    channel.send({**frame, "devices": devices, "left_out": len(found) - len(devices)})


def _prove(channel: Channel, order: dict[str, Any]) -> None:
    backend, found, runtime = order["backend"], detected_device_from(order["found"]), order["runtime"]
    show_only(backend, found)
    here = mechanism(backend, found.library)
    channel.send({"op": "step", "what": f"importing {found.library}", "backends": [backend]})
    if not _told(channel, [backend], lambda: here.load(found.library)):
        return
    channel.send({"op": "step", "what": f"computing on {order['device']}", "backends": [backend]})
    if not _told(channel, [backend], lambda: _proved(channel, here, backend, found)):
        return
    checked: dict[str, dict[str, str]] = {}
    for engine in engines().values():
        if backend not in engine.backends or not serves(engine, runtime):
            continue
        channel.send({"op": "step", "what": f"loading {engine.library}", "backends": [backend]})
        try:
            checked[engine.name] = load_engine(engine.name).check()
        except (ImportError, OSError) as error:
            channel.send({"op": "no_engine", "engine": engine.name, "detail": _words(error)})
        channel.send({"op": "engines", "engines": checked})  # so that one which hangs takes none of the others along


def _proved(channel: Channel, here: Any, backend: str, found: Any) -> None:
    proof = prove(backend, found)
    try:
        free = here.free_bytes(backends()[backend], found)
    except Exception:  # noqa: BLE001 (a library that cannot tell; what it can compute was just seen)
        free = None
    channel.send({"op": "proved", "proof": asdict(proof), "memory_free_bytes": free})


def _told(channel: Channel, names: Iterable[str], work: Callable[[], object]) -> bool:
    """Whether it went well; any failure becomes a frame, and only the death of the process is silent."""
    about = {"backends": list(names)}
    try:
        work()
    except WrongResult as error:
        channel.send({"op": "wrong", **about, "detail": str(error)})
    except DeviceAbsent as error:
        channel.send({"op": "absent", **about, "detail": str(error), "quiet": error.quiet})
    except (ImportError, OSError) as error:
        channel.send({"op": "missing", **about, "detail": _words(error)})
    except Exception as error:  # noqa: BLE001 (the border of the process: the parent decides what it means)
        channel.send({"op": "failed", **about, "detail": _words(error)})
    else:
        return True
    return False


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return True  # it is there, and broken: the import will say how


def _words(error: BaseException) -> str:
    """The exception in one line, and what it came from; libraries write whole pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
    cause = error.__cause__ or error.__context__
    return words if cause is None or str(cause) in words else f"{words} ({_words(cause)})"
