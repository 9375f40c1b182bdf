"""The output of `devices` from the server's response."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from backend.cli.commands.devices import table
from backend.common.types import Device, Hardware

CPU = Device("cpu", "Ryzen", "cpu", "cpu", "ready", hardware_id="cpu:0")
CARD = Hardware("pci:0000:01:00.0", "RTX 3050", "NVIDIA", "gpu", devices=["cuda:0"])
BROKEN = Device(
    "cuda:0",
    "RTX 3050",
    "cuda",
    "gpu",
    "broken",
    reason="Wrong result.",
    remedy="Update the driver.",
    layer="computation",
)


def found(devices: list[Device], hardware: list[Hardware], default: str | None = "cpu") -> dict[str, Any]:
    return {
        "devices": [asdict(device) for device in devices],
        "hardware": [asdict(item) for item in hardware],
        "default": default,
        "default_reason": "It is the only one.",
        "probing": False,
    }


def test_the_ready_ones_first_then_what_the_others_lack_then_the_hardware() -> None:
    hidden = replace(CARD, hidden_by=["CUDA_VISIBLE_DEVICES=1 hides it."], reason="No driver.", remedy="Install one.")
    assert table(found([BROKEN, CPU], [Hardware("cpu:0", "Ryzen", "AMD", "cpu", devices=["cpu"]), hidden])) == (
        "Available devices (1):\n"
        "  cpu: Ryzen\n"
        "\n"
        "auto is cpu. It is the only one.\n"
        "\n"
        "Not available (1):\n"
        "  cuda:0: broken, computation: Wrong result.\n"
        "      Update the driver.\n"
        "\n"
        "Hardware (2):\n"
        "  cpu:0: Ryzen (cpu): cpu\n"
        "  pci:0000:01:00.0: RTX 3050 (gpu): cuda:0\n"
        "      CUDA_VISIBLE_DEVICES=1 hides it.\n"
        "      No driver.\n"
        "      Install one."
    )


def test_no_device_at_all_is_a_table_too() -> None:
    assert table(found([], [], None)) == "Available devices (0):"


def test_no_name_can_steer_a_terminal() -> None:
    assert "\x1b" not in table(found([replace(CPU, name="\x1b[2JRyzen\u202e")], []))
