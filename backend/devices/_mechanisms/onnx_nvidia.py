"""What the providers for NVIDIA cards have in common: which variables hide and order the cards, what must be loaded."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice

HIDING = ("CUDA_VISIBLE_DEVICES",)
LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its place."""
    return {"CUDA_VISIBLE_DEVICES": str(found.position), **LISTING}


def prepare_library(onnxruntime: Any) -> None:
    """Loads the libraries that came as packages, where no loader would find them."""
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
