"""MIG instances of NVIDIA cards, from NVML. Runs in a child process, because NVML may hang if a card fell off the bus.

Sources: NVIDIA's MIG user guide (MIG is supported on Linux alone) and the NVML reference: `nvmlDeviceGetMigMode`,
`nvmlDeviceGetMigDeviceHandleByIndex`, and `nvmlDeviceGetUUID`, which returns `MIG-UUID` since driver 470 and
`MIG-GPU-UUID/GPU instance/compute instance` before. Not yet run on a card in MIG mode.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import DetectedDevice
from backend.devices._mechanisms.identity import hardware_id, is_instance, pci_address, size, uuid_text
from backend.devices._mechanisms.nvml_structures import PciInfo

_TEXT = 96


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def with_instances(listed: list[DetectedDevice]) -> list[DetectedDevice]:
    """Return the cards with all MIG instances, and the whole cards that CUDA leaves out next to an instance.

    Without a MIG instance, or without NVML, these are the listed cards.
    """
    if sys.platform != "linux":
        return listed
    try:
        nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return listed
    if nvml.nvmlInit_v2():
        return listed
    try:
        reported = list(_reported(nvml))
    finally:
        nvml.nvmlShutdown()
    return joined(listed, reported)


def joined(listed: Sequence[DetectedDevice], reported: Sequence[DetectedDevice]) -> list[DetectedDevice]:
    """Return the cards of CUDA's list and of NVML's, if NVML reports MIG instances; else those of CUDA's.

    torch counts whole cards by NVML, of which CUDA cannot describe more than one then, so those are left out.
    """
    if not any(is_instance(card.identity) for card in reported):
        return list(listed)
    by_uuid = {card.identity["uuid"][4:]: card for card in reported}
    # Before driver 470 CUDA reports an instance with the UUID of its card.
    parents = {uuid.partition("/")[0].removeprefix("GPU-") for uuid in by_uuid if "/" in uuid}
    everything = []
    for card in (card for card in listed if card.fault is None):
        uuid = card.identity.get("uuid", "")[4:]
        if same := by_uuid.pop(uuid, None):
            everything.append(replace(same, name=card.name, architecture=card.architecture))
        elif uuid not in parents:
            everything.append(card)
    everything += by_uuid.values()
    return [replace(card, position=place, count=len(everything)) for place, card in enumerate(everything)]


def _reported(nvml: Any) -> Iterator[DetectedDevice]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    for index in range(count.value):
        card = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)):
            continue
        pci = PciInfo()
        unknown = nvml.nvmlDeviceGetPciInfo_v3(card, ctypes.byref(pci))
        address = None if unknown else pci.busId.decode("ascii", "replace")
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        unsupported = nvml.nvmlDeviceGetMigMode(card, ctypes.byref(current), ctypes.byref(pending))
        if unsupported or not current.value:
            yield from _described(nvml, card, address)
            continue
        most = ctypes.c_uint()
        nvml.nvmlDeviceGetMaxMigDeviceCount(card, ctypes.byref(most))
        for number in range(most.value):
            instance = ctypes.c_void_p()
            if not nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number, ctypes.byref(instance)):
                yield from _described(nvml, instance, address)


def _described(nvml: Any, handle: ctypes.c_void_p, address: str | None) -> Iterator[DetectedDevice]:
    """Describe a card or an instance; nothing without a UUID, which is the only way to choose it."""
    uuid = uuid_text(_text(nvml.nvmlDeviceGetUUID, handle))
    if uuid is None:
        return
    memory = _Memory()
    known = not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    identity = {key: value for key, value in (("pci", pci_address(address)), ("uuid", uuid)) if value}
    yield DetectedDevice(
        name=clean_name(_text(nvml.nvmlDeviceGetName, handle) or "NVIDIA card"),
        kind="gpu",
        hardware_id=hardware_id(identity),
        memory_bytes=size(memory.total) if known else None,
        memory_free_bytes=None,
        library="torch",
        identity=identity,
        selectors=[uuid],
    )


def _text(function: Any, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_TEXT)
    return "" if function(handle, text, len(text)) else text.value.decode("utf-8", "replace")
