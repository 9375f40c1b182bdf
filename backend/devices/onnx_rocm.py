"""AMD cards through ONNX Runtime's older ROCm provider."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-rocm",
    label="ONNX Runtime ROCm",
    kind="gpu",
    rank=120,
    runtimes=("onnx-rocm",),
    aliases=("ROCMExecutionProvider", "RocmExecutionProvider", "onnx_rocm"),
)
