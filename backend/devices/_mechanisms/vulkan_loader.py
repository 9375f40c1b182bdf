"""Physical devices as the Vulkan loader lists them: name, type, PCI address, UUID. Runs in a child process.

Other libraries that compute through Vulkan report a software implementation as a GPU; the device type here reveals it.
Some software reports the type "other" or "virtual", so its driver id and its name count too. Structures and numbers are
from the Vulkan specification (VkPhysicalDeviceProperties2, VkPhysicalDeviceIDProperties,
VkPhysicalDeviceDriverProperties) and VK_EXT_pci_bus_info.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from dataclasses import dataclass

from backend.common.clean_text import clean_name
from backend.common.types import DeviceKind
from backend.devices._mechanisms.identity import pci_address, uuid_text
from backend.devices._mechanisms.software_adapters import is_software

# VkPhysicalDeviceType: other, integrated, discrete, virtual (a card passed to a virtual machine), processor.
_TYPES: dict[int, DeviceKind] = {0: "gpu", 1: "integrated", 2: "gpu", 3: "gpu", 4: "emulated"}
_PROPERTIES_2, _PCI_BUS, _ID, _DRIVER = 1_000_059_001, 1_000_212_000, 1_000_071_004, 1_000_196_000
_VERSION_1_1 = 1 << 22 | 1 << 12


@dataclass(frozen=True)
class PhysicalDevice:
    """One physical device, in the loader's order."""

    name: str
    kind: DeviceKind
    pci: str | None
    uuid: str | None
    vendor: int


class _ApplicationInfo(ctypes.Structure):
    _fields_ = [
        ("sType", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("pApplicationName", ctypes.c_char_p),
        ("applicationVersion", ctypes.c_uint32),
        ("pEngineName", ctypes.c_char_p),
        ("engineVersion", ctypes.c_uint32),
        ("apiVersion", ctypes.c_uint32),
    ]


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = [
        ("sType", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("pApplicationInfo", ctypes.POINTER(_ApplicationInfo)),
        ("enabledLayerCount", ctypes.c_uint32),
        ("ppEnabledLayerNames", ctypes.c_void_p),
        ("enabledExtensionCount", ctypes.c_uint32),
        ("ppEnabledExtensionNames", ctypes.c_void_p),
    ]


def physical_devices(loader: str | None = None) -> list[PhysicalDevice]:
    """List the physical devices.

    `loader`: optional, path of the Vulkan loader. Default: the system's.
    Raises OSError if the loader is missing, and with Vulkan's result code if no driver works.
    """
    vulkan = ctypes.CDLL(loader or ("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1"))
    application = _ApplicationInfo(sType=0, apiVersion=_VERSION_1_1)
    create_info = _InstanceCreateInfo(sType=1, pApplicationInfo=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    if result := vulkan.vkCreateInstance(ctypes.byref(create_info), None, ctypes.byref(instance)):
        raise OSError(f"vkCreateInstance returned {result}: no Vulkan driver works here")
    try:
        count = ctypes.c_uint32(0)
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        return [_describe_device(vulkan, ctypes.c_void_p(handle)) for handle in handles[: count.value]]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _describe_device(vulkan: ctypes.CDLL, handle: ctypes.c_void_p) -> PhysicalDevice:
    driver = ctypes.create_string_buffer(struct.pack("=IIQ", _DRIVER, 0, 0), 16 + 4 + 256 + 256 + 4)
    identity = ctypes.create_string_buffer(
        struct.pack("=IIQ", _ID, 0, ctypes.addressof(driver)), 16 + 16 + 16 + 8 + 4 + 4
    )
    bus = ctypes.create_string_buffer(struct.pack("=IIQ", _PCI_BUS, 0, ctypes.addressof(identity)), 16 + 4 * 4)
    all_ = ctypes.create_string_buffer(struct.pack("=IIQ", _PROPERTIES_2, 0, ctypes.addressof(bus)), 4096)
    vulkan.vkGetPhysicalDeviceProperties2(handle, all_)
    vendor, chip, type_ = struct.unpack_from("=III", all_.raw, 16 + 8)
    (driver_id,) = struct.unpack_from("=I", driver.raw, 16)  # 0 from drivers before Vulkan 1.2
    name = all_.raw[16 + 20 : 16 + 20 + 256].split(b"\0")[0].decode("utf-8", "replace")
    domain, number, device, function = struct.unpack_from("=IIII", bus.raw, 16)
    address = f"{domain:04x}:{number:02x}:{device:02x}.{function:x}"
    kind: DeviceKind = "emulated" if is_software(name, vendor, chip, driver_id) else _TYPES.get(type_, "gpu")
    return PhysicalDevice(clean_name(name), kind, pci_address(address), uuid_text(identity.raw[16:32].hex()), vendor)
