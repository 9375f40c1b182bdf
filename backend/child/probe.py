"""The probe program: `probe list RUNTIME` enumerates devices, `probe prove BACKEND INDEX RUNTIME` computes on one.

Child → parent: `step {what}` before each risky thing, so that a crash can be named; then `listed {devices}`, or
`proved {proof}` and `engines {engines}`, with `no_engine {engine, detail}` for each that does not load; or
`wrong {detail}`; or `missing {detail}` for an import or a library that fails.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backend.child.wire import Channel
from backend.devices import WrongResult, enumerate_devices, prove, reachable
from backend.engines import engines, load_engine


def main(channel: Channel, arguments: list[str]) -> int:
    """Runs one probe and exits 0 when it could say what it found."""
    action, *rest = arguments
    try:
        if action == "list":
            _list(channel, rest[0])
        else:
            _prove(channel, rest[0], int(rest[1]), rest[2])
    except WrongResult as error:
        channel.send({"op": "wrong", "detail": str(error)})
    except (ImportError, OSError) as error:
        channel.send({"op": "missing", "detail": f"{type(error).__name__}: {error}"})
    return 0


def _list(channel: Channel, runtime: str) -> None:
    found: list[dict[str, Any]] = []
    for name in reachable(runtime):
        channel.send({"op": "step", "what": f"listing {name} devices"})
        found += [{"backend": name, **asdict(device)} for device in enumerate_devices(name)]
    channel.send({"op": "listed", "devices": found})


def _prove(channel: Channel, backend: str, index: int, runtime: str) -> None:
    channel.send({"op": "step", "what": f"computing on {backend}"})
    proof = prove(backend, index)
    channel.send({"op": "proved", "proof": asdict(proof)})
    checked: dict[str, dict[str, str]] = {}
    for engine in engines().values():
        if backend not in engine.backends or runtime not in engine.runtimes:
            continue
        channel.send({"op": "step", "what": f"loading {engine.library}"})
        try:
            checked[engine.name] = load_engine(engine.name).check()
        except (ImportError, OSError) as error:
            channel.send({"op": "no_engine", "engine": engine.name, "detail": f"{type(error).__name__}: {error}"})
    channel.send({"op": "engines", "engines": checked})
