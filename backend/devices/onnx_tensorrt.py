"""NVIDIA cards through TensorRT; never first until measured, since its first load builds an engine for minutes."""

from __future__ import annotations

from backend.devices import Backend
from backend.devices._mechanisms.onnx_nvidia import HIDING as HIDING
from backend.devices._mechanisms.onnx_nvidia import LISTING as LISTING
from backend.devices._mechanisms.onnx_nvidia import environment as environment
from backend.devices._mechanisms.onnx_nvidia import prepare_library as prepare_library

BACKEND = Backend(
    name="onnx-tensorrt",
    label="ONNX Runtime TensorRT",
    kind="gpu",
    rank=800,
    runtimes=("onnx-cuda",),
    aliases=("tensorrt", "TensorrtExecutionProvider", "TensorRTExecutionProvider", "onnx_tensorrt"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    leads_unmeasured=False,
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("tensorrt", "nvtensorrtrtx")
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "trt_auxiliary_streams trt_bf16_enable trt_builder_optimization_level trt_context_memory_sharing_enable "
    "trt_cuda_graph_enable trt_detailed_build_log trt_dla_core trt_dla_enable trt_engine_cache_enable "
    "trt_engine_cache_path trt_engine_cache_prefix trt_engine_hw_compatible trt_force_sequential_engine_build "
    "trt_force_timing_cache trt_fp16_enable trt_int8_calibration_table_name trt_int8_enable "
    "trt_int8_use_native_calibration_table trt_layer_norm_fp32_fallback trt_max_partition_iterations "
    "trt_max_workspace_size trt_min_subgraph_size trt_op_types_to_exclude trt_profile_max_shapes "
    "trt_profile_min_shapes trt_profile_opt_shapes trt_sparsity_enable trt_timing_cache_enable "
    "trt_timing_cache_path trt_weight_stripped_engine_enable"
).split()
COMPILES_SHAPES = True  # an engine is built again where shapes leave those seen before
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none


def cache_options(folder: str, provider: str) -> dict[str, str]:
    """Engines, which take minutes to build, and the timings they are built from."""
    if "rtx" in provider.lower():  # another provider, which compiles on the card itself
        return {}
    kept = {f"trt_{kind}_cache_enable": "1" for kind in ("engine", "timing")}
    return {**kept, **{f"trt_{kind}_cache_path": folder for kind in ("engine", "timing")}}
