"""A card whose description ends or hangs the listing process: it alone is broken, the others are listed and proved."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from backend.child import handle
from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import watched_cards
from backend.devices._mechanisms.card_list import describe_all
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from tests.scripted_child import ScriptedProcess, frame, scripts_instead_of_processes
from tests.test_kept_child import MORE_ENGINES, PROVED, card

Json = dict[str, Any]
COUNT = 3


class Machine:
    """Children of a machine with three cards, some of which end (or hang) the process that describes them."""

    def __init__(self, sick: set[int], hangs: bool = False, ignores_faults: bool = False) -> None:
        self.sick, self.hangs, self.ignores_faults = sick, hangs, ignores_faults
        self.lists: list[list[str]] = []  # the arguments of each listing child

    def spawn(self, python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start one of them."""
        process = ScriptedProcess(stays=True)
        if arguments[1] == "list":
            self.lists.append(arguments[3:])
        threading.Thread(target=self._play, args=(process, arguments), daemon=True).start()
        return cast("subprocess.Popen[bytes]", process)

    def _play(self, process: ScriptedProcess, arguments: list[str]) -> None:
        if arguments[1] == "prove":
            process.write(b"".join(map(frame, [*PROVED, MORE_ENGINES])), is_last=True)
            return
        faults = json.loads(arguments[-1])["cuda"] if arguments[-1].startswith("{") else {}
        plan = ["cuda", "xpu"]
        frames: list[Json] = [{"op": "plan", "backends": plan}]
        if not arguments[3:] or "cuda" in arguments[3:]:
            for position in range(COUNT):
                step = {"op": "step", "what": f"describing cuda card {position}", "backends": ["cuda"]}
                frames.append({**step, "card": position})
                if position in self.sick and (self.ignores_faults or str(position) not in faults):
                    process.code = -11
                    process.write(b"".join(map(frame, frames)), is_last=not self.hangs)
                    return
            cards = [{**card(at, COUNT), "fault": faults.get(str(at))} for at in range(COUNT)]
            facts = {"library": "torch", "versions": {}, "devices": cards, "left_out": 0}
            frames.append({"op": "listed", "backends": ["cuda"], **facts})
        frames += [{"op": "absent", "backends": ["xpu"], "detail": "none", "quiet": True}, {"op": "end"}]
        process.write(b"".join(map(frame, frames)), is_last=True)


async def nothing(spawn: handle.Spawn) -> list[Hardware]:
    """Return an inventory without hardware."""
    return []


@pytest.fixture(autouse=True)
def scripts() -> Iterator[None]:
    """Take scripts for processes."""
    with scripts_instead_of_processes():
        yield


def probed(machine: Machine, limit_s: float = 10.0) -> dict[str, Device]:
    """Return the cards after one round."""
    subject = ProbeService({"torch": "python"}, limit_s, machine.spawn, DeviceQueue, inventory=nothing)
    asyncio.run(subject.probe())
    return {id_: device for id_, device in subject.devices.items() if device.backend == "cuda"}


@pytest.mark.parametrize("sick", [{0}, {1}, {2}, {0, 2}])
@pytest.mark.parametrize("hangs", [False, True])
def test_it_alone_is_broken(sick: set[int], hangs: bool) -> None:
    machine = Machine(sick, hangs)
    cards = probed(machine, 0.3 if hangs else 10.0)
    assert {id_ for id_, device in cards.items() if device.state == "broken"} == {f"cuda:{at}" for at in sick}
    assert {device.state for device in cards.values()} == {"broken", "ready"} and len(cards) == COUNT
    for at in sick:
        reason = str(cards[f"cuda:{at}"].reason)
        assert f"while describing cuda:{at}: it {'hung' if hangs else 'was killed by SIGSEGV'}" in reason
        assert "the other cards work" in str(cards[f"cuda:{at}"].remedy)
    assert len(machine.lists) == len(sick) + 1


def test_a_child_that_ends_at_a_known_card_again_is_not_repeated_without_end() -> None:
    machine = Machine({1}, ignores_faults=True)
    cards = probed(machine)
    assert [device.state for device in cards.values()] == ["broken"]
    assert 2 <= len(machine.lists) <= 3


def detected(position: int) -> DetectedDevice:
    return DetectedDevice(f"card {position}", "gpu", None, None, None, position=position)


def test_a_known_card_is_not_described_again() -> None:
    described: list[int] = []
    announced: list[int] = []

    def describe(position: int) -> DetectedDevice:
        described.append(position)
        return detected(position)

    with watched_cards(announced.append, {1: "it was killed by SIGSEGV"}):
        cards = describe_all(describe, 3, "NVIDIA", "torch")
    assert (described, announced) == ([0, 2], [0, 1, 2])
    assert [each.fault for each in cards] == [None, "it was killed by SIGSEGV", None]
    announced.clear()
    describe_all(describe, 2, "NVIDIA", "torch")
    assert not announced, "a proof and a worker report no such step"


def test_a_single_card_is_not_announced() -> None:
    announced: list[int] = []
    with watched_cards(announced.append, {}):
        describe_all(detected, 1, "NVIDIA", "torch")
    assert not announced, "the step of its backend is enough"
