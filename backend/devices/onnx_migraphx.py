"""AMD cards through MIGraphX."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-migraphx",
    label="ONNX Runtime MIGraphX",
    kind="gpu",
    rank=115,
    runtimes=("onnx-migraphx",),
    aliases=("migraphx", "MIGraphXExecutionProvider", "onnx_migraphx"),
)
