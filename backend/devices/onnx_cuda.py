"""NVIDIA cards through ONNX Runtime."""

from __future__ import annotations

from backend.devices import Backend, InstallOffer
from backend.devices._mechanisms.onnx_nvidia import HIDING as HIDING
from backend.devices._mechanisms.onnx_nvidia import LISTING as LISTING
from backend.devices._mechanisms.onnx_nvidia import environment as environment
from backend.devices._mechanisms.onnx_nvidia import prepare_library as prepare_library

BACKEND = Backend(
    name="onnx-cuda",
    label="ONNX Runtime CUDA",
    kind="gpu",
    rank=105,
    runtimes=("onnx-cuda",),
    aliases=("CUDAExecutionProvider", "onnx_cuda"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    offers=(InstallOffer("onnx-cuda"),),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("cuda",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "gpu_mem_limit arena_extend_strategy cudnn_conv_algo_search cudnn_conv_use_max_workspace "
    "cudnn_conv1d_pad_to_nc1d do_copy_in_default_stream enable_cuda_graph enable_skip_layer_norm_strict_mode "
    "prefer_nhwc sdpa_kernel tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable "
    "use_ep_level_unified_stream use_tf32"
).split()
PROOF_OPTIONS = {"use_tf32": "0"}  # else float32 is computed with inputs of 11 bits
LISTS_DEVICES = True  # so a provider that lists none has none
