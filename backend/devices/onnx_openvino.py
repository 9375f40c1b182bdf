"""Intel processors, GPUs and NPUs through OpenVINO."""

from __future__ import annotations

import json

from backend.devices import Backend, InstallOffer

BACKEND = Backend(
    name="onnx-openvino",
    label="ONNX Runtime OpenVINO",
    kind="integrated",
    rank=180,
    runtimes=("openvino",),
    aliases=("openvino", "OpenVINOExecutionProvider", "OpenVinoExecutionProvider", "onnx_openvino"),
    systems=("linux", "win32"),
    vendors=("Intel",),
    offers=(InstallOffer("openvino", kinds=("gpu", "integrated", "npu")),),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("openvino",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "cache_dir device_type disable_dynamic_shapes enable_causallm enable_opencl_throttling enable_qdq_optimizer "
    "layout load_config model_priority num_of_threads num_streams precision reshape_input"
).split()
# Processors with AMX and Intel's cards compute float32 in bfloat16 or float16 unless told otherwise; seen on a Xeon
# with onnxruntime-ep-openvino 1.8.1, whose option `precision` did not change it.
PROOF_OPTIONS = {"load_config": json.dumps({kind: {"INFERENCE_PRECISION_HINT": "f32"} for kind in ("CPU", "GPU")})}
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none
NONE_LISTED = (
    "OpenVINO's provider for ONNX Runtime takes Intel's devices alone and lists no device here; text runs by OpenVINO "
    "itself on any processor: the device cpu with the engine openvino-genai"
)


def cache_options(folder: str, provider: str) -> dict[str, str]:
    """Compiled graphs."""
    return {"cache_dir": folder}
