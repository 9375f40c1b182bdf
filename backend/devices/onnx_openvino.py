"""Intel processors, GPUs and NPUs through OpenVINO."""

from __future__ import annotations

from backend.devices import Backend, Offer

BACKEND = Backend(
    name="onnx-openvino",
    label="ONNX Runtime OpenVINO",
    kind="integrated",
    rank=180,
    runtimes=("openvino",),
    aliases=("openvino", "OpenVINOExecutionProvider", "OpenVinoExecutionProvider", "onnx_openvino"),
    systems=("linux", "win32"),
    vendors=("Intel",),
    offers=(Offer("openvino", kinds=("gpu", "integrated", "npu")),),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("openvino",)
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none
