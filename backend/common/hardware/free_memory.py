"""The free memory of a card now, from the driver's files or from its tool with a timeout.

A proof also reports free memory, but since then models were loaded and other programs started or exited.
"""

from __future__ import annotations

from backend.common.hardware import nvidia
from backend.common.hardware.host import Host, number, text_of

PCI = "pci:"
TOOL_S = 3.0  # timeout: a model load waits for it


def card_free_bytes(hardware_id: str, host: Host | None = None) -> int | None:
    """Return the free bytes of the card's memory, None if unknown. Takes up to `TOOL_S`."""
    if not hardware_id.startswith(PCI):
        return None
    host, address = host or Host(), hardware_id.removeprefix(PCI)
    folder = host.path("sys/bus/pci/devices", address)
    total, used = (number(text_of(folder / f"mem_info_vram_{name}")) for name in ("total", "used"))  # AMD's
    if total and used is not None:
        return max(0, total - used)
    if not nvidia.present(host):
        return None
    return nvidia.free_bytes(host, hardware_id, TOOL_S)
