"""What a card takes: joules by a counter of its own, or watts at a moment, from the driver's files or its library.

Linux' hwmon names them `energy1_input` in microjoules, `power1_average` and `power1_input` in microwatts (kernel
documentation, hwmon/sysfs-interface). NVIDIA's NVML counts millijoules from Volta on.
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
    """Joules since some moment; None where no counter can be read. Takes up to `TOOL_S`."""
    host = host or Host()
    if (counted := _sensor(host, hardware_id, "energy1_input")) is not None:
        return counted * MICRO
    if not hardware_id.startswith(PCI) or not nvidia.present(host):
        return None
    said = host.run((sys.executable, "-I", NVML, hardware_id.removeprefix(PCI)), TOOL_S).text.strip()
    return _figure(said)


def card_w(hardware_id: str, host: Host | None = None) -> float | None:
    """Watts now, or in the last second, as the driver has it; None where nothing tells. Takes up to `TOOL_S`."""
    host = host or Host()
    for name in ("power1_average", "power1_input"):
        if (told := _sensor(host, hardware_id, name)) is not None:
            return told * MICRO
    if not hardware_id.startswith(PCI) or not nvidia.present(host):
        return None
    said = nvidia.told(host, hardware_id, "power.draw", TOOL_S) or ""
    return _figure(said)


def _figure(said: str) -> float | None:
    """The number that a program printed; None for words."""
    return float(said) if said.replace(".", "", 1).isdigit() else None


def _sensor(host: Host, hardware_id: str, name: str) -> int | None:
    """A figure of the card's driver in /sys."""
    if not hardware_id.startswith(PCI):
        return None
    folder = host.path("sys/bus/pci/devices", hardware_id.removeprefix(PCI), "hwmon")
    texts = (text_of(file) for file in sorted(folder.glob(f"hwmon*/{name}")))
    return next((found for text in texts if (found := number(text)) is not None), None)
