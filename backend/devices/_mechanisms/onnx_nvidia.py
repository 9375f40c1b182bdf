"""What the ONNX Runtime providers for NVIDIA cards share: the variables that hide cards, and preloaded libraries."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice, Visibility

_LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def preload_libraries(onnxruntime: Any) -> None:
    """Load CUDA's libraries from pip packages, where the system's loader does not search."""
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": detected.selector, **_LISTING}


VISIBILITY = Visibility(variables=("CUDA_VISIBLE_DEVICES",), for_listing=_LISTING, environment=_environment)
