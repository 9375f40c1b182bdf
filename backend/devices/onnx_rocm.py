"""AMD cards through ONNX Runtime's older ROCm provider."""

from __future__ import annotations

from backend.common.device_api import DetectedDevice
from backend.devices import Backend

BACKEND = Backend(
    name="onnx-rocm",
    label="ONNX Runtime ROCm",
    kind="gpu",
    rank=120,
    runtimes=("onnx-rocm",),
    aliases=("ROCMExecutionProvider", "RocmExecutionProvider", "onnx_rocm"),
    systems=("linux",),
    vendors=("AMD",),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("rocm",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "arena_extend_strategy do_copy_in_default_stream enable_hip_graph gpu_mem_limit miopen_conv_exhaustive_search "
    "miopen_conv_use_max_workspace tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable"
).split()
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its place."""
    return {"HIP_VISIBLE_DEVICES": str(found.position)}
