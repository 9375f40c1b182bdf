"""Apple's GPU and neural engine through CoreML."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-coreml",
    label="ONNX Runtime CoreML",
    kind="gpu",
    rank=130,
    runtimes=("base",),
    aliases=("coreml", "CoreMLExecutionProvider", "onnx_coreml"),
    indexed=False,
)
