"""NVIDIA cards through TensorRT. Automatic choice needs a measurement: the first load builds an engine for minutes."""

from __future__ import annotations

from backend.common.device_api import Backend, OnnxProvider
from backend.devices._mechanisms.onnx_nvidia import VISIBILITY, preload_libraries

_OPTIONS = (
    "trt_auxiliary_streams trt_bf16_enable trt_builder_optimization_level trt_context_memory_sharing_enable "
    "trt_cuda_graph_enable trt_detailed_build_log trt_dla_core trt_dla_enable trt_engine_cache_enable "
    "trt_engine_cache_path trt_engine_cache_prefix trt_engine_hw_compatible trt_force_sequential_engine_build "
    "trt_force_timing_cache trt_fp16_enable trt_int8_calibration_table_name trt_int8_enable "
    "trt_int8_use_native_calibration_table trt_layer_norm_fp32_fallback trt_max_partition_iterations "
    "trt_max_workspace_size trt_min_subgraph_size trt_op_types_to_exclude trt_profile_max_shapes "
    "trt_profile_min_shapes trt_profile_opt_shapes trt_sparsity_enable trt_timing_cache_enable trt_timing_cache_path "
    "trt_weight_stripped_engine_enable"
).split()


def _cache_options(folder: str, provider: str) -> dict[str, str]:
    """Return the options that keep engines, which take minutes to build, and the timings for building them."""
    if "rtx" in provider.lower():  # the provider for RTX cards has other options
        return {}
    enabled = {f"trt_{kind}_cache_enable": "1" for kind in ("engine", "timing")}
    return {**enabled, **{f"trt_{kind}_cache_path": folder for kind in ("engine", "timing")}}


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
    onnx=OnnxProvider(
        names=("tensorrt", "nvtensorrtrtx"),
        options=tuple(_OPTIONS),
        rounds_inputs=True,
        compiles_shapes=True,  # a shape outside the ranges seen so far rebuilds the engine
        lists_devices=True,
        cache_options=_cache_options,
        prepare_library=preload_libraries,
    ),
    visibility=VISIBILITY,
)
