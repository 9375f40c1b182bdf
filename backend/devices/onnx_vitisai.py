"""AMD's NPU through Vitis AI."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-vitisai",
    label="ONNX Runtime Vitis AI",
    kind="npu",
    rank=210,
    runtimes=("vitisai",),
    aliases=("vitisai", "VitisAIExecutionProvider", "onnx_vitisai"),
    indexed=False,
)
