"""AMD cards through ONNX Runtime's older ROCm provider, which ended with release 1.22."""

from __future__ import annotations

from backend.common.device_api import Backend, DetectedDevice, OnnxProvider, Visibility
from backend.devices._mechanisms.hip_variables import VARIABLES

_OPTIONS = (
    "arena_extend_strategy do_copy_in_default_stream enable_hip_graph gpu_mem_limit miopen_conv_exhaustive_search "
    "miopen_conv_use_max_workspace tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable"
).split()


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {"HIP_VISIBLE_DEVICES": str(detected.position)}


BACKEND = Backend(
    name="onnx-rocm",
    label="ONNX Runtime ROCm",
    kind="gpu",
    rank=120,
    runtimes=("onnx-rocm",),
    aliases=("ROCMExecutionProvider", "RocmExecutionProvider", "onnx_rocm"),
    systems=("linux",),
    vendors=("AMD",),
    successor="onnx-migraphx",
    onnx=OnnxProvider(
        names=("rocm",),
        options=tuple(_OPTIONS),
    ),
    visibility=Visibility(variables=VARIABLES, environment=_environment),
)
