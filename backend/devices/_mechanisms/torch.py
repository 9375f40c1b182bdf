"""Devices through torch and the libraries that extend it. All functions run in a child process.

A backend file's `TorchSupport` checks what torch was built for, lists the devices and opens one.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, TorchAccess, TorchSupport
from backend.devices._mechanisms.identity import with_ranks


def load(library: str) -> Any:
    """Import torch and the library that extends it. Raises ImportError, OSError, and what a broken build raises."""
    torch = importlib.import_module("torch")
    if library != "torch":
        importlib.import_module(library)
    return torch


def versions(library: str) -> dict[str, str]:
    """Return the versions of torch and of the platform that it was built for."""
    torch = importlib.import_module("torch")
    numbers = {"torch": str(getattr(torch, "__version__", "unknown"))}
    build = getattr(torch, "version", None)
    for name in ("cuda", "hip", "xpu"):
        if number := getattr(build, name, None):
            numbers[name] = str(number)
    return numbers


def enumerate_devices(backend: Backend, library: str) -> list[DetectedDevice]:
    """List a backend's devices through torch. Raises DeviceAbsent."""
    return with_ranks(_support(backend).list_devices(load(library)))


def free_bytes(backend: Backend, detected: DetectedDevice) -> int | None:
    """Return the free memory of a device, None if torch does not report it."""
    return open_device(backend, detected).free_bytes()


def open_device(backend: Backend, detected: DetectedDevice) -> TorchAccess:
    """Open a device. Raises DeviceAbsent."""
    return _support(backend).open_device(load(detected.library), detected)


def device_named(torch: Any, type: str, index: int) -> Any:
    """Return the device as `tensor.to` accepts it."""
    return torch.device(type, index) if hasattr(torch, "device") else f"{type}:{index}"


def preferred_dtype(module: Any) -> str:
    """Return the dtype for models on a card of `torch.cuda` or `torch.xpu`: native bfloat16, else float16."""
    has_bfloat16 = getattr(module, "is_bf16_supported", None)
    return "bfloat16" if has_bfloat16 and has_bfloat16(including_emulation=False) else "float16"


def is_rocm_build(torch: Any) -> bool:
    """Return whether torch was built for ROCm.

    `version.hip` is None in some builds, so the local part of the version and the loaded runtime library also count.
    """
    build = getattr(torch, "version", None)
    return bool(
        getattr(build, "hip", None)
        or getattr(build, "rocm", None)
        or re.search(r"[+.]rocm", str(getattr(torch, "__version__", "")), re.IGNORECASE)
        or loaded_library("libamdhip64")
    )


def loaded_library(stem: str) -> tuple[str, ...]:
    """Return paths of this process's loaded libraries with that name. Wheels use names that no loader finds."""
    if sys.platform != "linux":
        return ()
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        paths = (line.split(None, 5)[-1].strip() for line in lines)
        return tuple(dict.fromkeys(path for path in paths if f"/{stem}.so" in path))
    return ()


def build_name(torch: Any) -> str:
    """Return torch's version and the platform that it was built for, in words."""
    name = f"torch {getattr(torch, '__version__', 'of an unknown version')}"
    build = getattr(torch, "version", None)
    for attribute, platform in (("hip", "ROCm (HIP {})"), ("cuda", "CUDA {}"), ("xpu", "Intel XPU {}")):
        if number := getattr(build, attribute, None):
            return f"{name}, built for {platform.format(number)}"
    if is_rocm_build(torch):
        return f"{name}, built for ROCm"
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is not None and mps.is_built():
        return f"{name}, built for Apple's GPU"
    return f"{name}, built for the processor alone"


def seconds_of(work: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Return the seconds that the device takes for the work."""
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def _support(backend: Backend) -> TorchSupport:
    if backend.torch is None:
        raise DeviceAbsent(f"torch does not reach {backend.label}")
    return backend.torch
