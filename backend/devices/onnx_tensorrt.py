"""NVIDIA cards through TensorRT; last until measured, since its first load builds an engine for minutes."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-tensorrt",
    label="ONNX Runtime TensorRT",
    kind="gpu",
    rank=800,
    runtimes=("onnx-cuda",),
    aliases=("tensorrt", "TensorrtExecutionProvider", "TensorRTExecutionProvider", "onnx_tensorrt"),
)
