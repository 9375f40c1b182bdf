"""NVIDIA cards through ONNX Runtime."""

from __future__ import annotations

from backend.common.device_api import Backend, InstallOffer, OnnxProvider
from backend.devices._mechanisms.onnx_nvidia import VISIBILITY, preload_libraries

_OPTIONS = (
    "gpu_mem_limit arena_extend_strategy cudnn_conv_algo_search cudnn_conv_use_max_workspace cudnn_conv1d_pad_to_nc1d "
    "do_copy_in_default_stream enable_cuda_graph enable_skip_layer_norm_strict_mode prefer_nhwc sdpa_kernel "
    "tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable use_ep_level_unified_stream "
    "use_tf32"
).split()


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
    onnx=OnnxProvider(
        names=("cuda",),
        options=tuple(_OPTIONS),
        proof_options={"use_tf32": "0"},  # by default float32 is computed with inputs of 11 bits
        lists_devices=True,
        prepare_library=preload_libraries,
    ),
    visibility=VISIBILITY,
)
