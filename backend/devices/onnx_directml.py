"""Any DirectX 12 card on Windows through ONNX Runtime."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-directml",
    label="ONNX Runtime DirectML",
    kind="gpu",
    rank=165,
    runtimes=("onnx-directml",),
    aliases=("onnx_dml", "DmlExecutionProvider", "DMLExecutionProvider", "DirectMLExecutionProvider", "onnx_directml"),
)
