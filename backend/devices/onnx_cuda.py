"""NVIDIA cards through ONNX Runtime."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-cuda",
    label="ONNX Runtime CUDA",
    kind="gpu",
    rank=105,
    runtimes=("onnx-cuda",),
    aliases=("CUDAExecutionProvider", "onnx_cuda"),
)
