"""Stable ids of hardware, and which hardware another library's way of naming a card means.

PCI addresses come in several spellings: sysfs writes `0000:01:00.0`, nvidia-smi `00000000:01:00.0`, Windows numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from backend.common.types import Hardware

_PCI = re.compile(r"(?:pci:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE)


def pci_id(domain: int, bus: int, device: int, function: int = 0) -> str:
    """`pci:0000:01:00.0`."""
    return f"pci:{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def pci_id_of(text: str) -> str | None:
    """The id for an address in any spelling; None for what is none, and for 0000:00:00.0, which means nothing."""
    if not (found := _PCI.fullmatch(text.strip())):
        return None
    domain, bus, device, function = (int(part, 16) if part else 0 for part in found.groups())
    return pci_id(domain, bus, device, function) if device < 32 and (domain or bus or device or function) else None


def luid_id(luid: int) -> str:
    """`luid:0x00000000_0x0000c8d2`, as Windows' performance counters write it."""
    return f"luid:{luid_text(luid)}"


def luid_text(luid: int) -> str:
    """The same without the prefix."""
    return f"0x{luid >> 32 & 0xFFFFFFFF:08x}_0x{luid & 0xFFFFFFFF:08x}"


def uuid_id(uuid: str) -> str:
    """`uuid:` and the UUID in small letters without a vendor's prefix such as `GPU-`."""
    return "uuid:" + uuid.strip().lower().removeprefix("gpu-")


def matching(hardware: Iterable[Hardware], identity: str) -> Hardware | None:
    """The hardware meant by an id (`pci:…`, `luid:…`, `uuid:…`, `cpu:0`), whichever of them is its own."""
    for item in hardware:
        others = (f"luid:{item.luid}", uuid_id(item.uuid) if item.uuid else None)
        if identity == item.id or identity in others:
            return item
    return None
