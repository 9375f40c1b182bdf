"""Energy of a card in joules from its counter, or power in watts, from the driver's files or its library.

Linux hwmon has `energy1_input` in microjoules, `power1_average` and `power1_input` in microwatts (kernel documentation,
hwmon/sysfs-interface). NVIDIA's NVML counts millijoules since Volta.
"""

from __future__ import annotations

import sys
from pathlib import Path

from backend.common.hardware import nvidia
from backend.common.hardware.free_memory import PCI, TOOL_S
from backend.common.hardware.host import Host, number, text_of

NVML = str(Path(__file__).with_name("load_nvml.py"))
MICRO = 1e-6


def card_j(hardware_id: str, host: Host | None = None) -> float | None:
    """Return the card's energy counter in joules, None if it has no readable counter. Takes up to `TOOL_S`."""
    host = host or Host()
    if (counted := _sensor(host, hardware_id, "energy1_input")) is not None:
        return counted * MICRO
    if not hardware_id.startswith(PCI) or not nvidia.present(host):
        return None
    output = host.run((sys.executable, "-I", NVML, hardware_id.removeprefix(PCI)), TOOL_S).text.strip()
    return _parse_number(output)


def card_w(hardware_id: str, host: Host | None = None) -> float | None:
    """Return the card's power in watts, now or averaged by the driver; None if unknown. Takes up to `TOOL_S`."""
    host = host or Host()
    for name in ("power1_average", "power1_input"):
        if (microwatts := _sensor(host, hardware_id, name)) is not None:
            return microwatts * MICRO
    if not hardware_id.startswith(PCI) or not nvidia.present(host):
        return None
    return nvidia.watts(host, hardware_id, TOOL_S)


def _parse_number(text: str) -> float | None:
    """Parse a number that a program printed. Returns None for other text."""
    return float(text) if text.replace(".", "", 1).isdigit() else None


def _sensor(host: Host, hardware_id: str, name: str) -> int | None:
    """Return a sensor value of the card's driver in /sys, None if there is none."""
    if not hardware_id.startswith(PCI):
        return None
    folder = host.path("sys/bus/pci/devices", hardware_id.removeprefix(PCI), "hwmon")
    texts = (text_of(file) for file in sorted(folder.glob(f"hwmon*/{name}")))
    return next((value for text in texts if (value := number(text)) is not None), None)
