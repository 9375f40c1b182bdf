"""Qualcomm's NPU through QNN."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-qnn",
    label="ONNX Runtime QNN",
    kind="npu",
    rank=220,
    runtimes=("qnn",),
    aliases=("qnn", "QNNExecutionProvider", "onnx_qnn"),
    indexed=False,
)
