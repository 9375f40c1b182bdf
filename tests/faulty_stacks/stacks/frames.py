"""Children that send what they should not: odd text, frames of another shape, output after the end, or nothing.

The runtime `sick` is the stack, `sound` a healthy one. Whatever `sick` does, `sound` and the processor stay ready.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from backend.child.handle import Spawn
from backend.child.process_end import MARKER
from backend.common.types import Device, Hardware
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.classification import proved
from backend.scheduling.probing.inventory import query_hardware
from backend.scheduling.probing.prober import Prober
from backend.server.json_response import JsonResponse
from tests.faulty_stacks.stack import Stack
from tests.scripted_child import ScriptedProcess, frame, scripts_instead_of_processes

Json = dict[str, Any]
_LIMIT_S = 10.0
_ENGINES = {"op": "engines", "engines": {"llama.cpp": {}}}
_ID = "vulkan:0"
_CARD: Json = {
    **{"name": "A card", "kind": "gpu", "hardware_id": None, "memory_bytes": 1 << 33, "memory_free_bytes": None},
    **{"library": "xllamacpp", "position": 0, "count": 1, "identity": {"pci": "0000:01:00.0"}},
}
_PROOF: Json = {
    **{"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4, "seconds": 0.1},
    **{"versions": {"xllamacpp": "1"}, "at": "2026-01-01T00:00:00Z", "pid": 1, "checks": []},
}


def listed(*cards: Json, **other: Any) -> bytes:
    """Return the frames of a list with these cards; `other` replaces fields of `listed`."""
    answer = {"op": "listed", "backends": ["vulkan"], "versions": {}, "left_out": 0, "devices": list(cards or (_CARD,))}
    return b"".join(map(frame, ({"op": "plan", "backends": ["vulkan"]}, {**answer, **other}, {"op": "end"})))


def proof(*frames: Json, **fields: Any) -> bytes:
    """Return the frames of a proof; `fields` replaces those of the proof, `frames` come after it."""
    step = {"op": "step", "what": "computing on vulkan:0", "backends": ["vulkan"]}
    return b"".join(map(frame, (step, {"op": "proved", "proof": {**_PROOF, **fields}}, *(frames or (_ENGINES,)))))


Answer = bytes | Callable[[], ScriptedProcess]


def start(answer: Answer) -> ScriptedProcess:
    """Return the child that gives an answer."""
    return ScriptedProcess(answer) if isinstance(answer, bytes) else answer()


async def judge(answers: Mapping[str, tuple[Answer, Answer]]) -> ProbeService:
    """Return the service after a round; `answers` are list and proof by runtime."""

    async def survey(_: Spawn) -> list[Hardware]:
        return []

    def spawn(python: str, arguments: list[str]) -> Any:
        return start(answers[python][arguments[1] == "prove"])

    with scripts_instead_of_processes():
        pythons = {name: name for name in answers}
        probes = ProbeService(pythons, _LIMIT_S, spawn, DeviceQueue, inventory=survey)
        await probes.probe()
    return probes


def described(probes: ProbeService) -> str:
    """Return the device list as a client receives it. Raises if it cannot be sent."""
    devices = [asdict(device) for device in probes.devices.values()]
    return bytes(JsonResponse({"devices": devices}).body).decode()


def stack(
    name: str,
    list_: Answer,
    proof_: Answer,
    state: str = "broken",
    reason: str = "it sent an invalid frame",
    shown: str = "",
    hidden: tuple[str, ...] = (),
) -> Stack:
    """Return a stack of one sick runtime: its device's state, what its reason has, what the list shows and hides."""

    async def check(_: Path) -> None:
        probes = await judge({"sick": (list_, proof_), "sound": (listed(name="x"), proof())})
        device = probes.table.report("sick", _ID)
        problem = probes.table.runtime_problems.get("sick")
        text = described(probes)
        if device is None:  # no list, so no device: the runtime has the problem
            assert problem and reason in problem.detail, problem
        else:
            assert device.state == state and reason in str(device.reason or ""), device
            assert state == "ready" or len(device.remedy or "") > 30, device
        sound = probes.table.report("sound", _ID)
        assert sound and sound.state == "ready" and probes.devices[_ID].state == "ready", sound
        assert shown in text and not any(mark in text for mark in hidden), text[:2000]

    return Stack(name, "other", check)


def _named(name: str) -> bytes:
    return listed({**_CARD, "name": name})


_READY: Json = {"state": "ready", "reason": ""}
_NO_PROOF = frame({"op": "proved"})
_WRONG = frame({"op": "wrong", "backends": ["vulkan"], "detail": "off"})
_ALWAYS = (
    b"".join(
        map(frame, ({"op": "plan", "backends": ["cpu", "vulkan"]}, {"op": "step", "what": "it", "backends": ["cpu"]}))
    )
    + frame({"op": "end"})[:9]
)


def raw(text: bytes) -> bytes:
    """Return a frame with any bytes."""
    return struct.pack("!II", len(text), 0) + text


_SHAPES = [
    stack("surrogate in a name", _named("RTX \ud83d 4090"), proof(), **_READY),
    stack("surrogate in a version", listed(), proof(versions={"torch\udc80": "2\udcff"}), **_READY),
    stack(
        "surrogate in a driver's error",
        listed(),
        frame({"op": "failed", "backends": ["vulkan"], "detail": "cannot open /dev/dri/\udcff128"}),
        reason="\\udcff128",
    ),
    stack("surrogate in a data type", listed(), proof(unusable={"bf\ud80016": "half\udc00"}), **_READY),
    stack("invisible name", _named("\u3164\u200b\u2060"), proof(), **_READY),
    stack("name that turns the text", _named("RTX\u202e0904"), proof(), **_READY, hidden=("\u202e", "\\u202e")),
    stack("name of tag characters", _named("RTX\U000e0034\U000e0035\ufe0f"), proof(), **_READY, hidden=("\U000e0034",)),
    stack("name with a terminal's commands", _named("\x1b]0;x\x07\x1b[31mRTX"), proof(), **_READY, hidden=("\\u001b",)),
    stack("name of a megabyte", _named("R" * 1_000_000), proof(), **_READY, hidden=("R" * 101,)),
    stack("list of another shape", listed(devices={"0": "A card"}), proof(), reason="`listed.devices`"),
    stack("card without a kind", listed({**_CARD, "kind": None}), proof(), reason="kind"),
    stack("memory as a text", listed({**_CARD, "memory_bytes": "8 GB"}), proof(), reason="memory_bytes"),
    stack("memory below zero", listed({**_CARD, "memory_bytes": -1}), proof(), reason="memory_bytes"),
    stack("thousand cards", listed(*[_CARD] * 1000), proof(), reason="more than 64"),
    stack("proof without a proof", listed(), _NO_PROOF, reason="(`proved` has no `proof`)"),
    stack("proof that is a list", listed(), frame({"op": "proved", "proof": [1]}), reason="`proved.proof`"),
    stack("error of a proof is NaN", listed(), proof(max_abs_error=float("nan")), reason="finite number"),
    stack("error of a proof above its tolerance", listed(), proof(max_abs_error=5.0), reason="above its tolerance"),
    stack("engines as a list", listed(), proof({**_ENGINES, "engines": ["llama.cpp"]}), reason="`engines.engines`"),
    stack("unknown engine", listed(), proof(_ENGINES, {"op": "engines", "engines": {"x": {}}}), **_READY),
    stack("two proofs", listed(), proof() + proof(), reason="`proved` came twice"),
    stack("proof after a wrong result", listed(), _WRONG + proof(), reason="Wrong result: off"),
    stack("nested a million times", listed(), raw(b"[" * 1_000_000), reason="not valid JSON"),
    stack("another encoding", listed(), raw('{"op": "end"}'.encode("utf-16")), reason="is not JSON"),
    stack("half a frame", listed(), proof()[:-5], reason="ended inside a frame"),
    stack("frames without end", listed(), proof(*[_ENGINES] * 1200), reason="more than 1000"),
    stack("list that always dies at the same step", _ALWAYS, proof(), reason="ended inside a frame"),
    stack("keys of a later version", listed({**_CARD, "later": [1]}, more=2), proof(later={"a": 1}), **_READY),
]


async def _hardware_of_another_shape(_: Path) -> None:
    frames = [{"op": "hardware", "hardware": [{"id": "cpu:0", "name": "P\ud800", "vendor": None, "kind": "cpu"}]}]
    frames.append({"op": "hardware", "hardware": "many"})

    def spawn(python: str, arguments: list[str]) -> Any:
        return ScriptedProcess(b"".join(map(frame, frames)))

    with scripts_instead_of_processes():
        found = await query_hardware(spawn, _LIMIT_S)
    assert [item.name for item in found] == ["P\\ud800"], found  # the last list that was right


async def _no_thread(_: Path) -> None:
    started = threading.Thread.start
    sick: list[ScriptedProcess] = []

    def refuse(thread: Any) -> None:
        if sick and not sick[-1].over.is_set():
            raise RuntimeError("can't start new thread")
        started(thread)

    def starve() -> ScriptedProcess:
        sick.append(ScriptedProcess(stays=True))
        return sick[-1]

    with mock.patch.object(threading.Thread, "start", refuse):
        probes = await judge({"sick": (starve, proof()), "sound": (listed(), proof())})
    assert "no thread" in probes.table.runtime_problems["sick"].detail
    assert sick[0].over.is_set() and probes.devices[_ID].state == "ready"


def _child(code: str) -> Callable[[Path], Coroutine[Any, Any, None]]:
    """Return a check that a real child, which keeps its pipes by a daemon or closes them, delays nothing."""

    async def check(folder: Path) -> None:
        script, note = folder / "child.py", folder / "pid"
        script.write_text(code.replace("NOTE", repr(str(note))))
        frames = {"list": listed(), "prove": proof()}

        def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
            pipe = subprocess.PIPE
            command = [sys.executable, "-S", str(script), frames[arguments[1]].hex()]
            variables = {**os.environ, MARKER: secrets.token_hex(8)}
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables, start_new_session=True
            )

        async def survey(_: Spawn) -> list[Hardware]:
            return []

        probes = ProbeService({"sick": "python"}, _LIMIT_S, spawn, DeviceQueue, inventory=survey)
        started = time.monotonic()
        await probes.probe()
        assert time.monotonic() - started < _LIMIT_S * 0.9
        assert probes.devices[_ID].state == "ready", probes.devices[_ID]
        for pid in note.read_text().split() if note.exists() else []:
            for _ in range(100):
                if _is_gone(int(pid)):
                    break
                await asyncio.sleep(0.02)
            assert _is_gone(int(pid)), f"the daemon {pid} was left behind"

    return check


async def _closes_its_output(folder: Path) -> None:
    script = folder / "child.py"
    step = frame({"op": "step", "what": "computing", "backends": ["vulkan"]}).hex()
    script.write_text(f"import os, time\nos.write(1, bytes.fromhex({step!r}))\nos.close(1)\ntime.sleep(60)\n")
    started: list[subprocess.Popen[bytes]] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        pipe, command = subprocess.PIPE, [sys.executable, "-S", str(script)]
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True))
        return started[-1]

    with mock.patch("backend.child.handle._EXIT_S", 0.2):
        outcome = await Prober(spawn, _LIMIT_S, 1).run("python", ["prove", "{}"])
    device = proved(Device(_ID, "A card", "vulkan", "gpu", "probing"), "sick", outcome)
    assert device.state == "broken" and "it closed its output and did not exit" in str(device.reason), device
    assert started[0].poll() is not None


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


_SEND = "import os, sys, time\nout = os.fdopen(1, 'wb')\nout.write(bytes.fromhex(sys.argv[1])); out.flush()\n"
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    SETSID
    if os.fork() == 0:
        with open(NOTE, "a") as note:
            note.write(f"{os.getpid()} ")
        CLOSE
        time.sleep(60)
    os._exit(0)
time.sleep(0.2)
"""
STACKS = [
    *_SHAPES,
    Stack("hardware of another shape", "other", _hardware_of_another_shape),
    Stack("no thread for a child", "other", _no_thread),
    Stack("child that closes its output and lives on", "other", _closes_its_output),
    *(
        Stack(name, "other", _child(_DAEMON.replace("SETSID", setsid).replace("CLOSE", close) + _SEND + "os._exit(0)"))
        for name, setsid, close in (
            ("daemon keeps the pipes", "pass", "pass"),
            ("daemon in a new session keeps the pipes", "os.setsid()", "pass"),
            ("daemon that closed the pipes", "os.setsid()", "os.closerange(0, 9)"),
        )
        if sys.platform == "linux"
    ),
]
