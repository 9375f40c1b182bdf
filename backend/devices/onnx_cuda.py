"""NVIDIA cards through ONNX Runtime."""

from __future__ import annotations

from typing import Any

from backend.devices import Backend, Found, Offer

BACKEND = Backend(
    name="onnx-cuda",
    label="ONNX Runtime CUDA",
    kind="gpu",
    rank=105,
    runtimes=("onnx-cuda",),
    aliases=("CUDAExecutionProvider", "onnx_cuda"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    offers=(Offer("onnx-cuda"),),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("cuda",)
PROOF_OPTIONS = {"use_tf32": "0"}  # else float32 is computed with inputs of 11 bits
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
