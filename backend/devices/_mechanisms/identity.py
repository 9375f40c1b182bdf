"""The identity of cards in one form for all libraries, and matching of a listed card by it.

The order in which a library lists cards may change between two processes: DXGI's depends on the display that is
primary, CUDA's on `CUDA_DEVICE_ORDER`. So each process that opens a device lists again and matches by address, UUID or
LUID, and the name must be the same. Without these, name and memory decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backend.common.byte_sizes import parse_bytes
from backend.common.device_api import DetectedDevice, DeviceAbsent
from backend.common.hardware.ids import pci_id_of, uuid_id

_KEYS = ("pci", "uuid", "luid")
# As nvmlDeviceGetUUID returned a MIG instance before driver 470: the card's UUID, GPU instance, compute instance.
_OLD_INSTANCE = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/(\d+)/(\d+)", re.IGNORECASE)


def pci_address(text: Any) -> str | None:
    """Return a PCI address as `0000:01:00.0`, from any spelling; None if it is invalid or all zeros."""
    id_ = pci_id_of(str(text))
    return id_.removeprefix("pci:") if id_ else None


def uuid_text(value: Any, instance: bool = False) -> str | None:
    """Return a UUID in the form of the drivers' tools; None if it is missing or all zeros.

    It is `GPU-…`, or `MIG-…` for an instance of an NVIDIA card. Libraries report it without prefix, so `instance`
    states whether it is one; default: only if the value has the prefix.
    """
    text = str(value).strip() if value is not None else ""
    if old := _OLD_INSTANCE.fullmatch(text):
        return f"MIG-GPU-{old[1][4:].lower()}/{old[2]}/{old[3]}"
    instance = instance or text.upper().startswith("MIG-")
    prefix = "MIG" if instance else "GPU"
    digits = re.sub(r"[^0-9a-f]", "", text.lower().replace("gpu", "").replace("mig", ""))
    if len(digits) != 32 or not digits.strip("0"):
        return None
    letters = bytes.fromhex(digits)
    if all(byte in b"0123456789abcdef" for byte in letters):  # AMD: sixteen hexadecimal digits as characters
        return f"{prefix}-{letters.decode()}"
    return f"{prefix}-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_instance(identity: dict[str, str]) -> bool:
    """Return whether the identity is that of a MIG instance, a part of a card with its own memory."""
    return identity.get("uuid", "").startswith("MIG-")


def hardware_id(identity: dict[str, str]) -> str | None:
    """Return the Hardware's id from the best key: PCI address, LUID or UUID; None if the library reports none.

    A MIG instance has its UUID as id, since it computes independently of the other instances at its address.
    """
    if is_instance(identity):
        return uuid_id(identity["uuid"])
    if pci := identity.get("pci"):
        return f"pci:{pci}"
    if luid := identity.get("luid"):
        return f"luid:{luid}"
    return uuid_id(identity["uuid"]) if "uuid" in identity else None


def with_ranks(listed: Sequence[DetectedDevice]) -> list[DetectedDevice]:
    """Return the devices of one list, each with the number of equal devices and its rank among them."""
    ranked = []
    for place, device in enumerate(listed):
        equals = [other for other, candidate in enumerate(listed) if _looks_like(candidate, device)]
        ranked.append(replace(device, equals=len(equals), rank=equals.index(place)))
    return ranked


def match_device(detected: DetectedDevice, listed: Sequence[DetectedDevice], masked: bool = True) -> DetectedDevice:
    """Return the device as this process lists it.

    `masked`: whether a variable hides the other devices, so that the only one listed is the one asked for, even if
    others equal it. Raises DeviceAbsent if it is gone, or if another device is in its place.
    """
    candidates, identified, by_uuid = list(listed), False, False
    for key in _KEYS:
        value = detected.identity.get(key)
        reporting = [candidate for candidate in candidates if key in candidate.identity]
        if value is None or not reporting:
            continue
        candidates = [each for each in reporting if _plain(each.identity[key]) == _plain(value)]
        if not candidates:
            raise DeviceAbsent(f"{detected.name} ({value}) was listed a moment ago and is gone")
        identified, by_uuid = True, by_uuid or key == "uuid"
    if by_uuid and len(candidates) == 1:  # a UUID is unique in the world; two libraries may spell the name differently
        return candidates[0]
    equals = [each for each in candidates if _looks_like(each, detected, identified)]
    if candidates and not equals:
        raise DeviceAbsent(
            f"{detected.name} was listed a moment ago, and now {_names(candidates)} is in its place: the order of the "
            "devices has changed, or it is gone"
        )
    if len(equals) == 1 and (identified or detected.equals == 1 or (masked and len(listed) == 1)):
        return equals[0]
    if len(equals) == detected.equals and detected.rank < len(equals):
        return equals[detected.rank]
    raise DeviceAbsent(
        f"{detected.name} was listed a moment ago and is gone: {len(listed)} devices instead of {detected.count}"
    )


def size(value: Any) -> int | None:
    """Parse a number of bytes, also with a unit such as `8031 MB`. Returns None if it is not a plausible size."""
    number = free_size(value)
    return number or None


def free_size(value: Any) -> int | None:
    """Parse a number of free bytes as `size` does; 0 means that the memory is full."""
    if isinstance(value, str):
        value = parse_bytes(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and 0 <= number < 2**60 else None


def _looks_like(one: DetectedDevice, other: DetectedDevice, identified: bool = False) -> bool:
    """Return whether names are the same, and memory sizes unless the device is identified or one is unknown."""
    same_memory = identified or None in (one.memory_bytes, other.memory_bytes) or one.memory_bytes == other.memory_bytes
    return one.name == other.name and same_memory


def _plain(value: str) -> str:
    """Return a UUID without its prefix, which not every process knows; other values unchanged.

    Of a MIG instance before driver 470 it is the card's, which CUDA reported then.
    """
    return value.partition("/")[0].removeprefix("MIG-").removeprefix("GPU-")


def _names(devices: Sequence[DetectedDevice]) -> str:
    return ", ".join(dict.fromkeys(device.name for device in devices))
