"""UUIDs of Intel's cards from the Level Zero loader, which ggml's SYCL does not report. Runs in a child process.

With them a card that torch lists too is one device. Source: Level Zero's `ze_api.h` (`ze_device_properties_t`). Not yet
run on a card.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import DetectedDevice
from backend.devices._mechanisms.identity import hardware_id, uuid_text

_NAMES = ("libze_loader.so.1", "ze_loader.dll")
_GPU_ONLY = 1  # ZE_INIT_FLAG_GPU_ONLY
_PROPERTIES = 3  # ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES


class DeviceProperties(ctypes.Structure):
    """ze_device_properties_t."""

    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("type", "vendor", "device", "flags", "subdevice", "clock")),
        ("max_allocation", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("contexts", "priority", "threads", "width", "units", "parts", "slices")),
        ("timer", ctypes.c_uint64),
        ("timestamp_bits", ctypes.c_uint32),
        ("kernel_timestamp_bits", ctypes.c_uint32),
        ("uuid", ctypes.c_uint8 * 16),
        ("name", ctypes.c_char * 256),
    ]


def with_uuids(listed: list[DetectedDevice]) -> list[DetectedDevice]:
    """Return the cards with their UUIDs, if Level Zero lists as many cards with the same names; else unchanged."""
    found: list[tuple[str, str | None]] = []
    for name in _NAMES:
        with contextlib.suppress(OSError, AttributeError):
            found = _cards(ctypes.CDLL(name))
            break
    if [name for name, _ in found] != [card.name for card in listed]:
        return listed
    cards = []
    for card, (_, uuid) in zip(listed, found, strict=True):
        identity = {**card.identity, "uuid": uuid} if uuid else card.identity
        cards.append(replace(card, identity=identity, hardware_id=hardware_id(identity)))
    return cards


def _cards(library: Any) -> list[tuple[str, str | None]]:
    """Return name and UUID of each card, in the order of the drivers. Raises AttributeError."""
    if library.zeInit(_GPU_ONLY):
        return []
    cards = []
    for driver in _handles(library.zeDriverGet):
        for device in _handles(library.zeDeviceGet, ctypes.c_void_p(driver)):
            properties = DeviceProperties(stype=_PROPERTIES)
            if library.zeDeviceGetProperties(ctypes.c_void_p(device), ctypes.byref(properties)) == 0:
                name = clean_name(properties.name.decode("utf-8", "replace"))
                cards.append((name, uuid_text(bytes(properties.uuid).hex())))
    return cards


def _handles(function: Any, *arguments: Any) -> list[int]:
    """Return the handles that a function lists: it is called for their number, then for them."""
    count = ctypes.c_uint32()
    if function(*arguments, ctypes.byref(count), None):
        return []
    handles = (ctypes.c_void_p * count.value)()
    if function(*arguments, ctypes.byref(count), handles):
        return []
    return [handle for handle in handles[: count.value] if handle]
