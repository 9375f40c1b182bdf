"""Devices through ggml, llama.cpp's library, in any build that `llama_builds` finds. Runs in a child process.

Called by ctypes, with the declarations of ggml.h and ggml-backend.h of ggml 0.20 to 0.27. ggml lists the devices of
each of its backends in a registry, with name, memory and, where the vendor's library reports it, the PCI address. A
backend file may add what ggml does not report (`GgmlSupport.refine`), or list the devices itself (`list_devices`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, GgmlSupport
from backend.common.known_errors.table import telling_line
from backend.common.types import DeviceKind
from backend.devices._mechanisms.identity import (
    free_size,
    hardware_id,
    match_device,
    pci_address,
    size,
    with_ranks,
)
from backend.devices._mechanisms.llama_builds import LlamaBuild, LlamaLibraries, find_build

F32, F16, I32 = 0, 1, 26
_INTEGRATED = 2  # enum ggml_backend_dev_type: CPU, GPU, integrated GPU, accelerator
_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_float
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ggml_backend_reg_count": (),
    "ggml_backend_reg_get": (_SIZE,),
    "ggml_backend_reg_name": (_POINTER,),
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
    "ggml_backend_reg_count": _SIZE,
    "ggml_backend_reg_name": ctypes.c_char_p,
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


@dataclass(frozen=True)
class GgmlAccess:
    """Access to one device through ggml. `base` exports ggml's functions, `handle` is its `ggml_backend_dev_t`.

    `name` is ggml's, such as `CUDA0`, which also names its buffers and the lines of llama.cpp's log.
    """

    libraries: LlamaLibraries
    base: Any
    handle: int
    name: str

    def free_bytes(self) -> int | None:
        """Return the free memory that the driver reports."""
        free, total = _SIZE(), _SIZE()
        self.base.ggml_backend_dev_memory(self.handle, ctypes.byref(free), ctypes.byref(total))
        return free_size(free.value)


def declare(library: Any) -> Any:
    """Return the library with argument and result types of the functions used here. Raises AttributeError."""
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name, _POINTER)
    library.ggml_init.argtypes, library.ggml_init.restype = (InitParams,), _POINTER
    return library


def load(library: str) -> LlamaBuild:
    """Return the build; its libraries are loaded later, for one backend. Raises ImportError without one."""
    build = find_build()
    if build is None:
        raise ImportError("No build of llama.cpp is installed in this environment")
    return build


def versions(library: str) -> dict[str, str]:
    """Return the version of the build."""
    build = load(library)
    return {build.name: build.version}


def enumerate_devices(backend: Backend, library: str) -> list[DetectedDevice]:
    """List a backend's devices. Raises DeviceAbsent, and OSError if a library or a driver is missing."""
    support = _support(backend)
    build = load(library)
    if build.cards is not None and not set(support.names) & set(build.cards):
        raise _not_in(build, backend)
    if support.list_devices:
        if build.cards is None and not hasattr(build.load().ggml, support.function):
            raise _not_in(build, backend)  # before the driver's own library is asked for, which may be missing
        listed = support.list_devices()
        _registry(build, backend)
    else:
        listed = [device for device, _ in _listed(build, backend, support, masked=False)]
    if not listed:
        reason = _reason(build.load().log) or "it lists no card"
        raise DeviceAbsent(support.explain(reason) if support.explain else reason)
    return with_ranks([replace(device, library=library) for device in listed])


def free_bytes(backend: Backend, detected: DetectedDevice) -> int | None:
    """Return the free memory that the driver reports."""
    return open_device(backend, detected).free_bytes()


def open_device(backend: Backend, detected: DetectedDevice) -> GgmlAccess:
    """Open a device in a process that sees only this one. Raises DeviceAbsent, OSError."""
    support = _support(backend)
    build = load(detected.library)
    if support.prepare:
        support.prepare(detected)
    listed = _listed(build, backend, support, masked=True)
    if not listed:
        raise DeviceAbsent(f"{detected.name} was listed a moment ago, but llama.cpp lists no device now")
    matched = match_device(detected, [device for device, _ in listed])
    libraries = build.load()
    handle = listed[matched.position][1]
    return GgmlAccess(libraries, libraries.ggml, handle, _text(_props(libraries.ggml, handle).name))


def _listed(
    build: LlamaBuild, backend: Backend, support: GgmlSupport, masked: bool
) -> list[tuple[DetectedDevice, int]]:
    """Return ggml's devices of a backend with their handles, 0 for one that ggml does not list in this process.

    `masked`: whether this process sees only one device.
    """
    base, registry = _registry(build, backend)
    count = base.ggml_backend_reg_dev_count(registry)
    handles = [base.ggml_backend_reg_dev_get(registry, position) for position in range(count)]
    described = [_describe_device(_props(base, handle), position, count) for position, handle in enumerate(handles)]
    refined = support.refine(described, masked) if support.refine else described
    return list(zip(refined, [*handles, *(0,) * len(refined)], strict=False))


def _registry(build: LlamaBuild, backend: Backend) -> tuple[Any, int]:
    """Load the build; return its functions and ggml's registry of a backend. Raises DeviceAbsent, OSError."""
    libraries = build.load()
    base, support = declare(libraries.ggml), _support(backend)
    for number in range(base.ggml_backend_reg_count()):
        registry: int = base.ggml_backend_reg_get(number)
        if _text(base.ggml_backend_reg_name(registry)).lower() in support.names:
            return base, registry
    for name in support.names:
        if fault := libraries.faults.get(name):
            raise OSError(fault)
    if build.cards and (reason := _reason(libraries.log)):
        raise OSError(reason)
    raise _not_in(build, backend)


def _describe_device(props: Props, position: int, count: int) -> DetectedDevice:
    address = pci_address(_text(props.device_id))
    identity = {"pci": address} if address else {}
    kind: DeviceKind = "integrated" if props.type == _INTEGRATED else "gpu"
    return DetectedDevice(
        name=clean_name(_text(props.description)),
        kind=kind,
        hardware_id=hardware_id(identity),
        memory_bytes=size(props.memory_total),
        memory_free_bytes=None,
        position=position,
        count=count,
        identity=identity,
    )


def _props(base: Any, handle: int) -> Props:
    props = Props()
    base.ggml_backend_dev_get_props(handle, ctypes.byref(props))
    return props


def _not_in(build: LlamaBuild, backend: Backend) -> DeviceAbsent:
    return DeviceAbsent(f"{build.name} {build.version} has no backend for {backend.label}", quiet=True)


def _reason(log: str) -> str | None:
    """Return the line of ggml's log that has a reason why a backend lists no device."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    failed = next((line for line in lines if "fail" in line.lower() or "error" in line.lower()), None)
    return telling_line(lines) or failed


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _support(backend: Backend) -> GgmlSupport:
    if backend.ggml is None:
        raise DeviceAbsent(f"llama.cpp does not reach {backend.label}")
    return backend.ggml
