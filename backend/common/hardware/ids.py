"""Stable ids of hardware, and matching of the ids that libraries use.

PCI addresses come in several spellings: sysfs writes `0000:01:00.0`, nvidia-smi `00000000:01:00.0`, Windows numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from backend.common.types import Hardware

_PCI = re.compile(r"(?:pci:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE)


def pci_id(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return `pci:0000:01:00.0`."""
    return f"pci:{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def pci_id_of(text: str) -> str | None:
    """Parse a PCI address in any spelling. Returns its id, None for invalid ones and for 0000:00:00.0."""
    if not (match := _PCI.fullmatch(text.strip())):
        return None
    domain, bus, device, function = (int(part, 16) if part else 0 for part in match.groups())
    return pci_id(domain, bus, device, function) if device < 32 and (domain or bus or device or function) else None


def luid_id(luid: int) -> str:
    """Return `luid:0x00000000_0x0000c8d2`, in the form of Windows' performance counters."""
    return f"luid:{luid_text(luid)}"


def luid_text(luid: int) -> str:
    """Return the LUID without the prefix."""
    return f"0x{luid >> 32 & 0xFFFFFFFF:08x}_0x{luid & 0xFFFFFFFF:08x}"


def uuid_id(uuid: str) -> str:
    """Return `uuid:` and the UUID in lower case, without a prefix such as `GPU-`."""
    return "uuid:" + uuid.strip().lower().removeprefix("gpu-")


def matching(hardware: Iterable[Hardware], identity: str) -> Hardware | None:
    """Return the hardware with this id (`pci:…`, `luid:…`, `uuid:…`, `cpu:0`), also if it is not its main id."""
    for item in hardware:
        others = (f"luid:{item.luid}", uuid_id(item.uuid) if item.uuid else None)
        if identity == item.id or identity in others:
            return item
    return None
