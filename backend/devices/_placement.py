"""Open a device for an engine: find the library that reaches it, and the device as that library lists it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent
from backend.common.errors import DeviceLost, DeviceNotReady
from backend.devices._mechanisms import ggml, onnx, torch
from backend.devices._mechanisms.ggml import GgmlAccess
from backend.devices._mechanisms.onnx_placement import OnnxPlace
from backend.devices._mechanisms.torch_placement import TorchPlace
from backend.devices._registry import backends, mechanism, split_id


def torch_place(device: str, detected: DetectedDevice | None = None) -> TorchPlace:
    """Open a device for an engine that uses torch.

    `detected`: optional, the device as listed before (`LoadRequest.detected_device`). Default: it is listed now.
    Raises DeviceLost if the device is gone or another one is in its place, DeviceNotReady if torch does not reach its
    backend.
    """
    backend, index = _backend_and_index(device)
    if backend.torch is None:
        raise _unreachable("torch", backend)
    with _lost_if_absent(device):
        listed = _find_device(backend, index, backend.torch.library, detected)
        return TorchPlace(device, torch.open_device(backend, listed))


def onnx_place(
    device: str, detected: DetectedDevice | None = None, options: Mapping[str, Any] | None = None, cache: str = ""
) -> OnnxPlace:
    """Open a device for an engine that uses ONNX Runtime.

    `detected`: optional, the device as listed before. Default: it is listed now. `options`: optional, the user's
    options for the provider (`known_options`). `cache`: optional, a folder for what the provider compiles.
    Raises DeviceLost if the device is gone or another one is in its place, DeviceNotReady if ONNX Runtime does not
    reach its backend.
    """
    backend, index = _backend_and_index(device)
    if backend.onnx is None:
        raise _unreachable("ONNX Runtime", backend)
    with _lost_if_absent(device):
        listed = _find_device(backend, index, backend.onnx.library, detected)
        return replace(onnx.open_device(backend, listed, device), options=options or {}, cache=cache)


def ggml_place(device: str, detected: DetectedDevice | None = None) -> GgmlAccess:
    """Open a device for an engine that uses llama.cpp, in a process that sees only this device.

    `detected`: optional, the device as listed before. Default: it is listed now.
    Raises DeviceLost if the device is gone or another one is in its place, DeviceNotReady if llama.cpp does not reach
    its backend, OSError if a library or a driver is missing.
    """
    backend, index = _backend_and_index(device)
    if backend.ggml is None:
        raise _unreachable("ggml", backend)
    with _lost_if_absent(device):
        listed = _find_device(backend, index, backend.ggml.library, detected)
        return ggml.open_device(backend, listed)


@contextlib.contextmanager
def _lost_if_absent(device: str) -> Iterator[None]:
    try:
        yield
    except DeviceAbsent as error:
        raise DeviceLost(
            f"{device} cannot be opened: {str(error).rstrip('.')}.",
            "Refresh the devices, which lists and proves them again; then rerun the job.",
        ) from error


def _backend_and_index(device: str) -> tuple[Backend, int]:
    name, index = split_id(device)
    return backends()[name], index


def _find_device(backend: Backend, index: int, library: str, detected: DetectedDevice | None) -> DetectedDevice:
    """Return the device as that library lists it. Raises DeviceAbsent."""
    if detected is None:
        listed = mechanism(backend.name, library).enumerate_devices(backend, library)
        if index >= len(listed):
            raise DeviceAbsent(f"{backend.name}:{index} was requested, but {len(listed)} such devices are listed")
        detected = listed[index]
    return replace(detected, library=library)


def _unreachable(library: str, backend: Backend) -> DeviceNotReady:
    return DeviceNotReady(f"{library} does not reach {backend.label}.", "Choose another device or another engine.")
