"""Qualcomm's NPU through QNN."""

from __future__ import annotations

from backend.devices import Backend, Offer

BACKEND = Backend(
    name="onnx-qnn",
    label="ONNX Runtime QNN",
    kind="npu",
    rank=220,
    runtimes=("qnn",),
    aliases=("qnn", "QNNExecutionProvider", "onnx_qnn"),
    indexed=False,
    systems=("win32", "linux"),
    vendors=("Qualcomm",),
    offers=(Offer("qnn", kinds=("npu",)),),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("qnn",)
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none
