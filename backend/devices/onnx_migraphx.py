"""AMD cards through MIGraphX."""

from __future__ import annotations

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, InstallOffer

BACKEND = Backend(
    name="onnx-migraphx",
    label="ONNX Runtime MIGraphX",
    kind="gpu",
    rank=115,
    runtimes=("onnx-migraphx",),
    aliases=("migraphx", "MIGraphXExecutionProvider", "onnx_migraphx"),
    systems=("linux", "win32"),
    vendors=("AMD",),
    offers=(InstallOffer("onnx-migraphx"),),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("migraphx",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "migraphx_arena_extend_strategy migraphx_bf16_enable migraphx_exhaustive_tune migraphx_fp16_enable "
    "migraphx_fp8_enable migraphx_int8_calibration_table_name migraphx_int8_enable migraphx_mem_limit "
    "migraphx_model_cache_dir migraphx_use_native_calibration_table"
).split()
COMPILES_SHAPES = True  # within the run, and some versions then fail (ROCm/AMDMIGraphX#4618)
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its place."""
    return {"HIP_VISIBLE_DEVICES": str(found.position)}
