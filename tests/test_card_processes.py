"""The cards on which NVIDIA's driver lists a process, with a stand-in for NVML."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from backend.common.device_api import DetectedDevice
from backend.common.types import Placement, PlacementPart
from backend.devices import backends
from backend.devices._mechanisms import card_processes
from backend.devices._mechanisms.card_processes import CardProcesses, CardUse, DriverWitness, driver_witness

UUIDS = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")
UNKNOWN_BYTES = 2**64 - 1


class Nvml:
    """NVML with two cards. `lists` has the processes by card: process id and bytes, or an error code."""

    def __init__(self, lists: Mapping[int, list[tuple[int, int]] | int]) -> None:
        self._lists = lists
        self.answer = threading.Event()
        self.answer.set()
        self.questions = 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802 (NVML's names)
        self.questions += 1
        self.answer.wait(20)
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, card: Any) -> int:  # noqa: N802
        card._obj.value = index + 1
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: Any, number: Any, listed: Any) -> int:  # noqa: N802
        held = self._lists.get(card.value - 1, [])
        if isinstance(held, int):
            return held
        number._obj.value = len(held)
        for place, (pid, used) in enumerate(held):
            listed[place].pid, listed[place].usedGpuMemory = pid, used
        return 0

    def nvmlDeviceGetPciInfo_v3(self, card: Any, pci: Any) -> int:  # noqa: N802
        pci._obj.busId = f"00000000:0{card.value}:00.0".encode()
        return 0

    def nvmlDeviceGetUUID(self, card: Any, text: Any, size: int) -> int:  # noqa: N802
        text.value = UUIDS[card.value - 1].encode()
        return 0


def test_the_cards_of_a_process_are_found_by_its_id() -> None:
    first, second = CardUse("0000:01:00.0", UUIDS[0], 30), CardUse("0000:02:00.0", UUIDS[1], None)
    nvml = Nvml({0: [(7, 10), (8, 99), (7, 20)], 1: [(9, UNKNOWN_BYTES)]})
    processes = CardProcesses(nvml)
    assert [processes.find(pid) for pid in (7, 9, 10)] == [[first], [second], []]


@pytest.mark.parametrize("error", [3, 4, 999], ids=["not supported", "no permission", "unknown"])
def test_a_list_that_cannot_be_read_makes_all_unknown(error: int) -> None:
    assert CardProcesses(Nvml({0: [(7, 1)], 1: error})).find(7) is None


def test_a_driver_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_processes, "LIMIT_S", 0.02)
    nvml = Nvml({0: [(7, 1)]})
    nvml.answer.clear()
    processes = CardProcesses(nvml)
    assert processes.find(7) is None and processes.find(7) is None and nvml.questions == 1
    nvml.answer.set()


def test_a_machine_without_the_library_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert CardProcesses().find(7) is None


PLACED = Placement(1.0, [PlacementPart("cuda:1", 1.0)], "torch: all there.")


def witnessed(
    monkeypatch: pytest.MonkeyPatch, cards: list[int], placement: Placement = PLACED, *, machine: bool = True
) -> Placement:
    """Return the placement on the second card, of a process that the driver lists on these cards."""
    monkeypatch.setattr(card_processes, "has_machine_pids", lambda: machine)
    detected = DetectedDevice("B", "gpu", None, None, None, identity={"pci": "0000:02:00.0"})
    nvml = Nvml({card: [(os.getpid(), 5)] for card in cards})
    return DriverWitness(detected, CardProcesses(nvml)).check(placement)


@pytest.mark.parametrize("cards", [[1], [0, 1]], ids=["this", "both"])
def test_the_driver_confirms_the_card(monkeypatch: pytest.MonkeyPatch, cards: list[int]) -> None:
    found = witnessed(monkeypatch, cards)
    assert found.on_device == 1.0
    assert found.evidence == ("torch: all there. NVIDIA's driver lists this process on the card, with 5 bytes there.")


def test_another_card_contradicts_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    found = witnessed(monkeypatch, [0])
    assert (found.on_device, found.parts) == (None, [])
    assert "lists this process on 0000:01:00.0 and not on the card: placement unknown" in found.evidence


def test_a_process_on_no_card_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    found = witnessed(monkeypatch, [])
    assert found.on_device == 1.0 and found.evidence.endswith("NVIDIA's driver does not list this process.")


def test_in_a_container_and_for_an_unknown_placement_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert witnessed(monkeypatch, [0], machine=False) is PLACED
    unknown = Placement(None, [], "no word")
    assert witnessed(monkeypatch, [0], unknown) is unknown


def test_only_nvidias_cards_have_this_witness() -> None:
    detected = DetectedDevice("B", "gpu", None, None, None)
    names = [name for name, backend in backends().items() if driver_witness(backend, detected)]
    assert names == ["cuda", "onnx-cuda", "onnx-tensorrt"]
    assert driver_witness(backends()["cuda"], None) is None
