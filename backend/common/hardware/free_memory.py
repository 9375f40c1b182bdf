"""How much of a card's own memory is free now: from the driver's files, or from its tool, which may not hang us.

A proof tells it too, but of the moment of the proof: since then models were loaded, and other programs came and went.
"""

from __future__ import annotations

from backend.common.hardware import nvidia
from backend.common.hardware.host import Host, number, text_of

PCI = "pci:"
TOOL_S = 3.0  # a model is about to be loaded: longer than that is worse than not to know


def card_free_bytes(hardware_id: str, host: Host | None = None) -> int | None:
    """Bytes of the card's own memory that nobody has; None where nothing tells. Takes up to `TOOL_S`."""
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
