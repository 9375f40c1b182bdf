"""What tells one card from another, in one form whatever library says it, and the card found again by it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.hardware.ids import pci_id_of, uuid_id
from backend.devices import DeviceAbsent

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")
_NAME_LIMIT = 100


def pci_address(text: Any) -> str | None:
    """`0000:01:00.0`, from any spelling; None for what is no address, or nobody's (all zero)."""
    known = pci_id_of(str(text))
    return known.removeprefix("pci:") if known else None


def uuid_text(value: Any) -> str | None:
    """`GPU-…` in the form of the drivers' tools; None for none and for nothing but zeros."""
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower().replace("gpu", "")) if value is not None else ""
    if len(digits) != 32 or not digits.strip("0"):
        return None
    letters = bytes.fromhex(digits)
    if all(byte in b"0123456789abcdef" for byte in letters):  # AMD's sixteen digits, written as characters
        return f"GPU-{letters.decode()}"
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def hardware_id(identity: dict[str, str]) -> str | None:
    """The Hardware's id, by the best of what is known; None where the library hides it."""
    if pci := identity.get("pci"):
        return f"pci:{pci}"
    if luid := identity.get("luid"):
        return f"luid:{luid}"
    return uuid_id(identity["uuid"]) if "uuid" in identity else None


def chosen(found: DetectedDevice, listed: Sequence[DetectedDevice]) -> DetectedDevice:
    """The device as this process sees it: by its identity, or where there is none by its place. Raises Absent."""
    for key in ("pci", "uuid", "luid"):
        value = found.identity.get(key)
        if value is None:
            continue
        for candidate in listed:
            if candidate.identity.get(key) == value:
                return candidate
        if any(key in candidate.identity for candidate in listed):
            raise DeviceAbsent(f"{found.name} ({value}) was listed a moment ago and is gone")
    if len(listed) == found.count and found.position < len(listed):
        return listed[found.position]
    if len(listed) == 1:
        return listed[0]
    raise DeviceAbsent(
        f"{found.name} was listed a moment ago and is gone: {len(listed)} devices instead of {found.count}"
    )


def clean(name: Any) -> str:
    """A name as it can be shown anywhere."""
    text = _CONTROL.sub(" ", str(name)).encode("utf-8", "replace").decode("utf-8").strip()
    return text[:_NAME_LIMIT] or "unnamed"


def size(value: Any) -> int | None:
    """Bytes; None for what can be none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and 0 < number < 2**60 else None
