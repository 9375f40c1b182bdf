"""The identity of cards in one form for all libraries, and matching of a listed card by it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from backend.common.device_api import DetectedDevice, DeviceAbsent
from backend.common.hardware.ids import pci_id_of, uuid_id

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")
_NAME_LIMIT = 100


def pci_address(text: Any) -> str | None:
    """Return a PCI address as `0000:01:00.0`, from any spelling; None if it is invalid or all zeros."""
    id_ = pci_id_of(str(text))
    return id_.removeprefix("pci:") if id_ else None


def uuid_text(value: Any) -> str | None:
    """Return a UUID as `GPU-…`, in the form of the drivers' tools; None if it is missing or all zeros."""
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower().replace("gpu", "")) if value is not None else ""
    if len(digits) != 32 or not digits.strip("0"):
        return None
    letters = bytes.fromhex(digits)
    if all(byte in b"0123456789abcdef" for byte in letters):  # AMD: sixteen hexadecimal digits as characters
        return f"GPU-{letters.decode()}"
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def hardware_id(identity: dict[str, str]) -> str | None:
    """Return the Hardware's id from the best key: PCI address, LUID or UUID; None if the library reports none."""
    if pci := identity.get("pci"):
        return f"pci:{pci}"
    if luid := identity.get("luid"):
        return f"luid:{luid}"
    return uuid_id(identity["uuid"]) if "uuid" in identity else None


def match_device(detected: DetectedDevice, listed: Sequence[DetectedDevice]) -> DetectedDevice:
    """Return the device as this process lists it, by identity, otherwise by position. Raises DeviceAbsent."""
    for key in ("pci", "uuid", "luid"):
        value = detected.identity.get(key)
        if value is None:
            continue
        for candidate in listed:
            if candidate.identity.get(key) == value:
                return candidate
        if any(key in candidate.identity for candidate in listed):
            raise DeviceAbsent(f"{detected.name} ({value}) was listed a moment ago and is gone")
    if len(listed) == detected.count and detected.position < len(listed):
        return listed[detected.position]
    if len(listed) == 1:
        return listed[0]
    raise DeviceAbsent(
        f"{detected.name} was listed a moment ago and is gone: {len(listed)} devices instead of {detected.count}"
    )


def clean(name: Any) -> str:
    """Return a name without control characters, at most 100 characters long."""
    text = _CONTROL.sub(" ", str(name)).encode("utf-8", "replace").decode("utf-8").strip()
    return text[:_NAME_LIMIT] or "unnamed"


def size(value: Any) -> int | None:
    """Parse a number of bytes. Returns None if it is not a plausible size."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and 0 < number < 2**60 else None
