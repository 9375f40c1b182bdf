"""The child that lists a single device goes on to prove it, and a card is offered as soon as an engine is checked."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from backend.child import handle
from backend.common.types import Device, Hardware
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from tests.faulty_stacks.cases.case import CARD
from tests.faulty_stacks.environments import make
from tests.scripted_child import ScriptedProcess, frame, scripts_instead_of_processes

Json = dict[str, Any]
LIMIT_S = 10.0
PROOF: Json = {
    **{"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4, "seconds": 0.1},
    **{"versions": {"torch": "2"}, "at": "2026-01-01T00:00:00Z", "pid": 1, "checks": []},
}
PROVED: list[Json] = [
    {"op": "step", "what": "importing torch", "backends": ["cuda"]},
    {"op": "proved", "proof": PROOF, "memory_free_bytes": 5},
]
ENGINES: Json = {"op": "engines", "engines": {"torch": {"torch": "2"}}}
MORE_ENGINES: Json = {"op": "engines", "engines": {"torch": {"torch": "2"}, "transformers": {"transformers": "5"}}}


def card(position: int = 0, count: int = 1) -> Json:
    """Return a card as torch lists it."""
    uuid = f"GPU-{position}"
    return {
        **{"name": "A card", "kind": "gpu", "hardware_id": f"uuid:{uuid}", "memory_bytes": 1, "memory_free_bytes": 1},
        **{"library": "torch", "position": position, "count": count, "identity": {"uuid": uuid}},
        "selectors": [uuid, str(position)],
    }


def listing(cards: list[Json], plan: tuple[str, ...] = ("cuda", "rocm"), is_last: bool = True) -> list[Json]:
    """Return the frames of a list of these cards; `is_last`: with its end."""
    listed = {"op": "listed", "backends": ["cuda"], "library": "torch", "versions": {}, "devices": cards, "left_out": 0}
    absent = [{"op": "absent", "backends": [name], "detail": "none", "quiet": True} for name in plan if name != "cuda"]
    start: list[Json] = [{"op": "plan", "backends": list(plan)}]
    start.append({"op": "step", "what": "importing torch", "backends": list(plan)})
    frames = [*start, listed, *absent, {"op": "end"}]
    return frames if is_last else frames[:-1]


class Children:
    """Scripted children: each lists the cards, and plays `proof` when it is ordered to prove one."""

    def __init__(self, frames: list[Json], proof: Callable[[ScriptedProcess], None], stays: bool = True) -> None:
        self.frames, self.proof, self.stays = frames, proof, stays
        self.started: list[str] = []  # the first argument of each
        self.orders: list[Json] = []

    def spawn(self, python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start one of them."""
        action = arguments[1]
        self.started.append(action)
        process = ScriptedProcess(stays=True)
        work = self._list if action == "list" else self._prove
        threading.Thread(target=work, args=(process, arguments), daemon=True).start()
        return cast("subprocess.Popen[bytes]", process)

    def _list(self, process: ScriptedProcess, arguments: list[str]) -> None:
        process.write(b"".join(map(frame, self.frames)), is_last=not self.stays)
        if self.stays and (order := read_order(process)):
            self._prove(process, ["probe", *order["arguments"]])

    def _prove(self, process: ScriptedProcess, arguments: list[str]) -> None:
        self.orders.append(json.loads(arguments[2]))
        self.proof(process)


def read_order(process: ScriptedProcess) -> Json | None:
    """Return the order that the server sends to a child, None if it ends the child."""
    try:
        lengths = os.read(process.read_end, 8)
        return cast(Json, json.loads(os.read(process.read_end, struct.unpack("!II", lengths)[0]))) if lengths else None
    except OSError:
        return None


def playing(*frames: Json, code: int = 0) -> Callable[[ScriptedProcess], None]:
    """Return a proof of these frames, after which the child ends."""

    def play(process: ScriptedProcess) -> None:
        process.code = code
        process.write(b"".join(map(frame, frames)), is_last=True)

    return play


WELL = playing(*PROVED, MORE_ENGINES)


@pytest.fixture(autouse=True)
def scripts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take scripts for processes, except in the tests that name a temporary folder: they start real ones."""
    if "tmp_path" in request.fixturenames:
        yield
        return
    with scripts_instead_of_processes():
        yield


async def nothing(spawn: handle.Spawn) -> list[Hardware]:
    """Return an inventory without hardware."""
    return []


def service(children: Children, limit_s: float = LIMIT_S) -> ProbeService:
    """Return a probe service for one runtime of these children."""
    return ProbeService({"torch": "python"}, limit_s, children.spawn, DeviceQueue, inventory=nothing)


def probed(children: Children, limit_s: float = LIMIT_S) -> tuple[ProbeService, Device]:
    """Return the service and its card after one round."""
    subject = service(children, limit_s)
    asyncio.run(subject.probe())
    return subject, subject.devices["cuda:0"]


def test_a_single_card_is_proved_by_the_child_that_listed_it() -> None:
    children = Children(listing([card()]), WELL)
    subject, device = probed(children)
    assert children.started == ["list"]
    assert (device.state, device.engines) == ("ready", ["torch", "transformers"])
    detected = subject.detected_device("cuda:0", "torch")
    assert detected and detected.selector == "0", "no variable was tried, so a worker uses the position"


@pytest.mark.parametrize(
    ("frames", "proofs"),
    [
        (listing([card(0, 2), card(1, 2)]), 2),
        (listing([card()], ("cuda", "onnx-cuda")), 1),  # another library in the process could help or hurt
        (listing([{**card(), "identity": {"uuid": "MIG-1"}}]), 1),  # CUDA shows an instance by the variable alone
    ],
    ids=["two cards", "two libraries", "an instance"],
)
def test_others_are_proved_by_a_child_each(frames: list[Json], proofs: int) -> None:
    children = Children(frames, WELL)
    _, device = probed(children)
    assert children.started == ["list", *["prove"] * proofs] and device.state == "ready"


def test_a_child_that_ended_after_its_list_is_replaced() -> None:
    children = Children(listing([card()]), WELL, stays=False)
    subject, device = probed(children)
    assert children.started == ["list", "prove"] and device.state == "ready"
    detected = subject.detected_device("cuda:0", "torch")
    assert detected and detected.selector == "GPU-0"


def test_a_child_does_not_wait_for_a_long_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.scheduling.probing.prober.KEPT_S", 0.05)
    children = Children(listing([card()]), WELL)
    queue = DeviceQueue("card")
    subject = ProbeService({"torch": "python"}, LIMIT_S, children.spawn, lambda _: queue, inventory=nothing)

    async def play() -> None:
        async with queue.acquire("job"):
            task = asyncio.create_task(subject.probe())
            await asyncio.sleep(0.3)
            assert children.started == ["list"]
        await task

    asyncio.run(play())
    assert children.started == ["list", "prove"] and subject.devices["cuda:0"].state == "ready"


def test_a_list_without_an_end_does_not_hold_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.scheduling.probing.prober.SILENT_S", 0.1)
    children = Children(listing([card()], is_last=False), WELL)
    _, device = probed(children, 1.0)
    assert children.started == ["list", "prove"] and device.state == "ready"


def test_a_crash_in_the_proof_takes_the_device_and_not_the_list() -> None:
    children = Children(listing([card()]), playing(PROVED[0], code=-11))
    subject, device = probed(children)
    assert children.started == ["list"] and device.state == "broken" and "SIGSEGV" in str(device.reason)
    assert device.name == "A card" and "torch" not in subject.table.runtime_problems


def test_a_hang_in_the_proof_takes_the_device_and_not_the_list() -> None:
    children = Children(listing([card()]), lambda process: process.write(frame(PROVED[0])))
    subject, device = probed(children, 0.3)
    assert device.state == "broken" and "it hung" in str(device.reason)
    assert "torch" not in subject.table.runtime_problems


def test_a_refresh_of_the_device_starts_a_child_for_it_alone() -> None:
    children = Children(listing([card()]), WELL)
    subject = service(children)

    async def play() -> None:
        await subject.probe()
        await subject.probe("cuda:0")

    asyncio.run(play())
    assert children.started == ["list", "list", "prove"] and subject.devices["cuda:0"].state == "ready"


def test_a_card_is_offered_with_the_engines_that_are_checked_so_far() -> None:
    is_seen = threading.Event()
    seen: list[Device] = []

    def proof(process: ScriptedProcess) -> None:
        process.write(b"".join(map(frame, [*PROVED, ENGINES])))
        assert is_seen.wait(LIMIT_S)
        process.write(frame(MORE_ENGINES), is_last=True)

    subject = service(Children(listing([card()]), proof))

    async def play() -> None:
        task = asyncio.create_task(subject.probe())
        while not (device := subject.devices.get("cuda:0")) or device.state != "ready":
            await asyncio.sleep(0.005)
        seen.append(device)
        assert subject.probing and subject.is_checking("cuda:0")
        waiting = asyncio.create_task(subject.wait_until_checked(["cuda:0"]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        is_seen.set()
        await waiting
        seen.append(subject.devices["cuda:0"])
        await task

    asyncio.run(play())
    early, final = seen
    assert early.engines == ["torch"] and "is being checked" in early.lacks["transformers"]
    assert final.engines == ["torch", "transformers"] and "transformers" not in final.lacks
    assert not subject.is_checking("cuda:0")


def test_a_real_child_takes_the_order(tmp_path: Path) -> None:
    """A card by the child that lists it, and the processor, which torch lists too, by its own child."""
    started: list[str] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        started.append(arguments[1])
        return handle.spawn(python, arguments)

    python = make(tmp_path / "env", {"cards": [CARD]})
    subject = ProbeService({"mine": str(python)}, 60, spawn, DeviceQueue, inventory=nothing)
    asyncio.run(subject.probe())
    assert subject.devices["cuda:0"].state == "ready" == subject.devices["cpu"].state
    assert started == ["list", "prove"]
