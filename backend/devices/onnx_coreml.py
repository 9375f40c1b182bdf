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
    systems=("darwin",),
    vendors=("Apple",),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("coreml",)
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
