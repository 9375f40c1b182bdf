"""Why a device is missing: what bus, driver and runtimes reported, and the first thing to do."""

from __future__ import annotations

from typing import Any

import pytest

from backend.common.hardware.system_kind import System
from backend.common.types import Device, Hardware
from backend.scheduling.probing.device_table import RuntimeProblem
from backend.scheduling.probing.missing_devices import Surroundings, missing_devices, no_ready_device

CHIP = Hardware("cpu:0", "AMD Ryzen 7 5800X", "AMD", "cpu")
CARD = Hardware(
    "pci:0000:01:00.0", "NVIDIA GeForce RTX 3050", "NVIDIA", "gpu", driver="nvidia 535", pci_ids="10de:25a2"
)
BARE = Hardware(
    "pci:0000:03:00.0", "AMD Radeon RX 7900 XTX", "AMD", "gpu", reason="No driver is loaded for it.", remedy="Load it."
)
CPU = Device("cpu", CHIP.name, "cpu", "cpu", "ready", hardware_id=CHIP.id)
LINUX = Surroundings("linux")


def cuda(state: Any, **more: Any) -> Device:
    return Device("cuda:0", CARD.name, "cuda", "gpu", state, runtimes=["torch"], hardware_id=CARD.id, **more)


def test_a_card_with_a_ready_device_is_not_missing_nor_is_one_that_is_being_probed() -> None:
    for state in ("ready", "probing"):
        assert missing_devices([CHIP, CARD], [CPU, cuda(state)], here=LINUX) == []


def test_a_broken_device_is_answered_by_its_bus_driver_runtime_and_remedy() -> None:
    device = cuda("broken", reason="Wrong result: off by 7.", remedy="Update the driver.")
    (answer,) = missing_devices([CHIP, CARD], [CPU, device], here=LINUX)
    assert answer.bus == "The PCI bus shows NVIDIA GeForce RTX 3050 at 0000:01:00.0 (10de:25a2)."
    assert answer.driver == "The driver nvidia 535 reports no problem."
    assert answer.runtimes == "cuda:0 (torch) is broken: Wrong result: off by 7."
    assert (answer.hardware_id, answer.remedy) == (CARD.id, "Update the driver.")


def test_a_card_without_a_driver_needs_the_driver_first() -> None:
    device = Device("rocm:0", "x", "rocm", "gpu", "unavailable", remedy="Something else.", hardware_id=BARE.id)
    (answer,) = missing_devices([BARE], [device], here=LINUX)
    assert answer.driver == "No driver is loaded for it." and answer.remedy == "Load it."


def test_the_broken_device_tells_more_than_the_one_to_install() -> None:
    offered = Device("vulkan:0", "x", "vulkan", "gpu", "installable", remedy="Install it.", hardware_id=CARD.id)
    (answer,) = missing_devices([CARD], [offered, cuda("broken", reason="It died.", remedy="Look.")], here=LINUX)
    assert answer.runtimes == "cuda:0 (torch) is broken: It died. vulkan:0 is installable." and answer.remedy == "Look."


def test_a_card_that_no_runtime_lists_needs_one_unless_a_variable_hides_it() -> None:
    (answer,) = missing_devices([CARD], [CPU], here=LINUX)
    assert answer.runtimes == "No installed runtime lists it." and "runtimes" in answer.remedy
    hidden = Hardware(**{**vars(CARD), "hidden_by": ["CUDA_VISIBLE_DEVICES=1 hides it from CUDA."]})
    (answer,) = missing_devices([hidden], [CPU], here=LINUX)
    assert answer.remedy.startswith("CUDA_VISIBLE_DEVICES=1 hides it from CUDA. Unset the variable")


@pytest.mark.parametrize(
    ("here", "bus", "remedy"),
    [
        (Surroundings("linux"), "The PCI bus shows no graphics card and no NPU.", "`lspci -nn"),
        (Surroundings("container"), "This container shows no graphics card", "--gpus all"),
        (Surroundings("wsl"), "/dev/dxg is missing", "On Windows"),
        (Surroundings("wsl", has_dxg=True), "/dev/dxg exists", "On Windows"),
        (Surroundings("win32"), "Windows (DXGI) lists no graphics card", "Device Manager"),
        (Surroundings("darwin"), "macOS shows no graphics card", "arm64 Python"),
    ],
)
def test_without_any_card_the_answer_depends_on_the_system(here: Surroundings, bus: str, remedy: str) -> None:
    (answer,) = missing_devices([CHIP], [CPU], here=here)
    assert answer.hardware_id is None and bus in answer.bus and remedy in answer.remedy


@pytest.mark.parametrize("system", ["linux", "wsl", "win32", "darwin", "container"])
def test_a_card_that_is_there_is_named_with_who_lists_it(system: System) -> None:
    (answer,) = missing_devices([BARE], [CPU], here=Surroundings(system, has_dxg=True))
    assert BARE.name in answer.bus and ("Windows" in answer.bus) == (system in ("wsl", "win32"))


def test_a_card_is_found_by_words_of_its_name_also_if_it_is_ready() -> None:
    (answer,) = missing_devices([CHIP, CARD, BARE], [CPU, cuda("ready")], "rtx 3050", LINUX)
    assert answer.remedy == "Nothing: cuda:0 is ready."
    (answer,) = missing_devices([CHIP, CARD, BARE], [CPU, cuda("ready")], "Radeon", LINUX)
    assert answer.hardware_id == BARE.id


def test_a_card_that_is_not_there_is_answered_by_what_is() -> None:
    (answer,) = missing_devices([CHIP, CARD], [CPU, cuda("ready")], "Radeon RX 6800", LINUX)
    assert answer.name == "Radeon RX 6800" and answer.hardware_id is None
    assert CARD.name in answer.bus and answer.driver.startswith("AMD's driver") and "lspci" in answer.remedy


def test_the_first_thing_to_do_is_for_the_processor() -> None:
    processor = Device("cpu", "x", "cpu", "cpu", "broken", reason="It died.", remedy="Repair it.")
    card = cuda("broken", remedy="Update the driver.")
    torch = RuntimeProblem("It does not start.", "Reinstall torch.")
    nothing = "No device is ready, so no job can run."
    assert no_ready_device([card, processor], {"torch": torch}) == (f"{nothing} cpu is broken: It died.", "Repair it.")
    assert no_ready_device([card], {"torch": torch}) == (
        f"{nothing} The runtime torch: It does not start.",
        "Reinstall torch.",
    )
    assert no_ready_device([card]) == (f"{nothing} cuda:0 is broken.", "Update the driver.")
    assert no_ready_device([]) == (nothing, None)
