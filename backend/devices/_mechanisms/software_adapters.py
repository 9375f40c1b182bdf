"""Adapters that are not cards: software that computes on the processor, and displays that a program emulates.

Libraries report many of them as a GPU: Vulkan drivers with the type "other" or "virtual", DirectML with a name alone.

Sources: `VkDriverId` and `VkVendorId` of the Vulkan registry; the device names in the sources of Mesa and SwiftShader;
Microsoft's page on the "Microsoft Basic Render Driver" (vendor 0x1414, device 0x8c); the names of the display drivers
of VMware, VirtualBox, Parallels, QEMU, Hyper-V, Citrix, Parsec and others in their .inf files.
"""

from __future__ import annotations

import re

from backend.common.hardware.chips import emulated_by
from backend.common.types import DeviceKind

_MICROSOFT, _MESA = 0x1414, 0x10005  # Microsoft makes no cards; of Mesa's drivers only the software ones have its id
_WSL_CARD = 0x8E  # WSL's device for the cards of Windows
_SWIFTSHADER = (0x1AE0, 0xC0DE)
_SOFTWARE_DRIVERS = (10, 13)  # VK_DRIVER_ID_GOOGLE_SWIFTSHADER, VK_DRIVER_ID_MESA_LLVMPIPE
_REAL_WITHIN = re.compile(r"(?:Microsoft Direct3D12|virgl|Virtio-GPU Venus)\s*\((.+)\)\s*$", re.IGNORECASE)
_SURFACE = re.compile(r"\bSQ\d\b|Adreno", re.IGNORECASE)  # Microsoft's name for Qualcomm's chips
_NAMES = re.compile(
    r"llvmpipe|softpipe|lavapipe|swrast|swiftshader|software\s*(?:rasterizer|renderer|adapter|device|rendering)"
    r"|\bWARP\b|Basic\s*(?:Render|Display)|Remote\s*Display|Hyper-V Video|OpenSWR|GDI Generic"
    r"|\bvirtio\b|\bvirgl\b|\bQXL\b|\bVMware\b|SVGA\s*(?:3D|II)|\bSVGA3D\b|Parallels|VirtualBox|\bVBox|\bQEMU\b|\bBochs\b|Cirrus"
    r"|Citrix|Parsec|IddSample|Indirect Display|Virtual Display|spacedesk|DisplayLink|\bIdd(?:Cx)?\b|\bRDP\b|TeamViewer"
    r"|GameViewer|OrayIdd|Standard VGA|\bnull device\b",
    re.IGNORECASE,
)
_MICROSOFT_NAMES = re.compile(r"Microsoft|マイクロソフト|Майкрософт|微软|마이크로소프트", re.IGNORECASE)


def is_software(name: str, vendor: int | None = None, device: int | None = None, driver: int | None = None) -> bool:
    """Return whether an adapter is software, by name, PCI ids and Vulkan's driver id. All but the name are optional."""
    if match := _REAL_WITHIN.search(name):  # a layer over another adapter, which it names
        return is_software(match[1])
    if driver in _SOFTWARE_DRIVERS or vendor == _MESA or (vendor, device) == _SWIFTSHADER:
        return True
    if vendor is not None and device is not None and emulated_by(f"{vendor:04x}", f"{device:04x}"):
        return True
    if _SURFACE.search(name):
        return False
    return (vendor == _MICROSOFT and device != _WSL_CARD) or bool(_NAMES.search(name) or _MICROSOFT_NAMES.search(name))


def kind_and_hardware(name: str, kind: DeviceKind) -> tuple[DeviceKind, str | None]:
    """Return kind and hardware id of an adapter of which only the name is known. `kind` is that of a card."""
    return ("emulated", "cpu:0") if is_software(name) else (kind, None)
