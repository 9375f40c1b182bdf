"""Vulkan's devices for ggml, from the Vulkan loader: ggml hides software and calls it a GPU, the loader does not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from backend.common.device_api import DetectedDevice, DeviceAbsent
from backend.devices._mechanisms.identity import hardware_id, match_device
from backend.devices._mechanisms.vulkan_loader import PhysicalDevice, physical_devices

VARIABLE = "GGML_VK_VISIBLE_DEVICES"  # positions in Vulkan's list, not in ggml's


def list_devices() -> list[DetectedDevice]:
    """List Vulkan's physical devices, including software. Raises DeviceAbsent, OSError if no driver works."""
    physical = physical_devices()
    if not physical:
        raise DeviceAbsent("Vulkan lists no device")
    shown = _shown(len(physical))
    if not shown:
        raise DeviceAbsent(f"{VARIABLE}={os.environ[VARIABLE]} hides every Vulkan device")
    os.environ[VARIABLE] = ",".join(map(str, shown))  # by default ggml omits software devices and further cards
    return [_describe_device(physical, position) for position in shown]


def show_device(detected: DetectedDevice) -> None:
    """Make ggml list only this device, at its position in Vulkan's list now. Raises DeviceAbsent, OSError."""
    physical = physical_devices()
    listed = [_describe_device(physical, position) for position in range(len(physical))]
    os.environ[VARIABLE] = str(match_device(detected, listed, masked=False).position)


def _shown(count: int) -> list[int]:
    """Return the positions that the variable shows, by ggml's rules: numbers up to the first other word."""
    if VARIABLE not in os.environ:
        return list(range(count))
    words = os.environ[VARIABLE].replace(",", " ").split()
    numbers = [int(word) for word in itertools.takewhile(str.isdigit, words)]
    return [number for number in dict.fromkeys(numbers) if number < count]


def _describe_device(physical: Sequence[PhysicalDevice], position: int) -> DetectedDevice:
    device = physical[position]
    identity = {key: value for key, value in (("pci", device.pci), ("uuid", device.uuid)) if value}
    emulated = device.kind == "emulated"
    return DetectedDevice(
        name=device.name,
        kind=device.kind,
        hardware_id="cpu:0" if emulated else hardware_id(identity),
        memory_bytes=None,
        memory_free_bytes=None,
        position=position,
        count=len(physical),
        identity={} if emulated else identity,
    )
