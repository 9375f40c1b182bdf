"""Vulkan's physical devices: software is known whatever type its driver reports."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from backend.devices._mechanisms import vulkan_loader

OTHER, INTEGRATED, DISCRETE, VIRTUAL, PROCESSOR = range(5)


class Loader:
    """A Vulkan loader that fills the chain of structures for one device."""

    def __init__(self, name: str, type: int, vendor: int = 0, chip: int = 0, driver: int | None = None) -> None:
        self.facts = (name, type, vendor, chip, driver)

    def vkGetPhysicalDeviceProperties2(self, handle: Any, properties: Any) -> None:  # noqa: N802 (Vulkan's name)
        name, type_, vendor, chip, driver = self.facts
        struct.pack_into("=III", properties, 16 + 8, vendor, chip, type_)
        struct.pack_into("=256s", properties, 16 + 20, name.encode())
        (place,) = struct.unpack_from("=Q", properties, 8)
        while place:
            kind, _, following = struct.unpack("=IIQ", ctypes.string_at(place, 16))
            if kind == vulkan_loader._DRIVER and driver is not None:
                ctypes.memmove(place + 16, struct.pack("=I", driver), 4)
            if kind == vulkan_loader._PCI_BUS:
                ctypes.memmove(place + 16, struct.pack("=IIII", 0, 0x41, 0, 0), 16)
            place = following


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        (Loader("llvmpipe (LLVM 17.0.6, 256 bits)", PROCESSOR, 0x10005), "emulated"),
        (Loader("llvmpipe (LLVM 17.0.6, 256 bits)", OTHER), "emulated"),
        (Loader("A renamed driver", OTHER, driver=13), "emulated"),
        (Loader("A renamed driver", VIRTUAL, 0x10005), "emulated"),
        (Loader("SwiftShader Device (LLVM 10.0.0)", DISCRETE, 0x1AE0, 0xC0DE, 10), "emulated"),
        (Loader("Virtio-GPU Venus (llvmpipe (LLVM 15.0.7, 256 bits))", VIRTUAL), "emulated"),
        (Loader("Virtio-GPU Venus (NVIDIA GeForce RTX 3060)", VIRTUAL, 0x10DE, 0x2503, 22), "gpu"),
        (Loader("NVIDIA A10-4Q", VIRTUAL, 0x10DE, 0x2236, 4), "gpu"),
        (Loader("AMD Radeon RX 7900 XTX (RADV NAVI31)", DISCRETE, 0x1002, 0x744C, 3), "gpu"),
        (Loader("Intel(R) Iris(R) Xe Graphics (TGL GT2)", INTEGRATED, 0x8086, 0x9A49, 6), "integrated"),
        (Loader("An unknown accelerator", OTHER, 0x1EFD, 1, 0), "gpu"),
    ],
    ids=lambda value: value.facts[0] + str(value.facts[1]) if isinstance(value, Loader) else value,
)
def test_kind_of_a_device(loader: Loader, kind: str) -> None:
    device = vulkan_loader._describe_device(loader, ctypes.c_void_p())  # type: ignore[arg-type]
    assert (device.kind, device.pci, device.vendor) == (kind, "0000:41:00.0", loader.facts[2])
