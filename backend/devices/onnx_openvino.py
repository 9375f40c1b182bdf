"""Intel processors, GPUs and NPUs through ONNX Runtime's OpenVINO provider."""

from __future__ import annotations

import json

from backend.common.device_api import Backend, InstallOffer, OnnxProvider

_OPTIONS = (
    "cache_dir device_type disable_dynamic_shapes enable_causallm enable_opencl_throttling enable_qdq_optimizer "
    "layout load_config model_priority num_of_threads num_streams precision reshape_input"
).split()


def _cache_options(folder: str, provider: str) -> dict[str, str]:
    """Return the options that keep compiled graphs in the folder."""
    return {"cache_dir": folder}


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
    onnx=OnnxProvider(
        names=("openvino",),
        options=tuple(_OPTIONS),
        # By default processors with AMX and Intel's cards compute float32 in bfloat16 or float16. Seen on a Xeon with
        # onnxruntime-ep-openvino 1.8.1, whose option `precision` did not change it.
        proof_options={
            "load_config": json.dumps({kind: {"INFERENCE_PRECISION_HINT": "f32"} for kind in ("CPU", "GPU")})
        },
        rounds_inputs=True,
        lists_devices=True,
        none_listed=(
            "ONNX Runtime's OpenVINO provider supports only Intel devices and lists no device here; for text on any "
            "processor, use the device cpu with the engine openvino-genai"
        ),
        cache_options=_cache_options,
    ),
)
