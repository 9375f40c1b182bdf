"""NVIDIA cards through TensorRT; never first until measured, since its first load builds an engine for minutes."""

from __future__ import annotations

from typing import Any

from backend.devices import Backend, Found

BACKEND = Backend(
    name="onnx-tensorrt",
    label="ONNX Runtime TensorRT",
    kind="gpu",
    rank=800,
    runtimes=("onnx-cuda",),
    aliases=("tensorrt", "TensorrtExecutionProvider", "TensorRTExecutionProvider", "onnx_tensorrt"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    leads_unmeasured=False,
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("tensorrt", "nvtensorrtrtx")
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none
HIDING = ("CUDA_VISIBLE_DEVICES",)
LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def environment(found: Found) -> dict[str, str]:
    """That card alone, by its place."""
    return {"CUDA_VISIBLE_DEVICES": str(found.position), **LISTING}


def prepare_library(onnxruntime: Any) -> None:
    """Loads the CUDA libraries that came as packages, where no loader would find them."""
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
