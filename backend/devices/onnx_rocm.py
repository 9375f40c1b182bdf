"""AMD cards through ONNX Runtime's older ROCm provider."""

from __future__ import annotations

from backend.devices import Backend, Found

BACKEND = Backend(
    name="onnx-rocm",
    label="ONNX Runtime ROCm",
    kind="gpu",
    rank=120,
    runtimes=("onnx-rocm",),
    aliases=("ROCMExecutionProvider", "RocmExecutionProvider", "onnx_rocm"),
    systems=("linux",),
    vendors=("AMD",),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("rocm",)
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def environment(found: Found) -> dict[str, str]:
    """That card alone, by its place."""
    return {"HIP_VISIBLE_DEVICES": str(found.position)}
