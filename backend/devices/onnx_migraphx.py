"""AMD cards through MIGraphX."""

from __future__ import annotations

from backend.common.device_api import Backend, DetectedDevice, InstallOffer, OnnxProvider, Visibility
from backend.devices._mechanisms.hip_variables import VARIABLES

_OPTIONS = (
    "migraphx_arena_extend_strategy migraphx_bf16_enable migraphx_exhaustive_tune migraphx_fp16_enable "
    "migraphx_fp8_enable migraphx_int8_calibration_table_name migraphx_int8_enable migraphx_mem_limit "
    "migraphx_model_cache_dir migraphx_use_native_calibration_table"
).split()


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {"HIP_VISIBLE_DEVICES": str(detected.position)}


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
    onnx=OnnxProvider(
        names=("migraphx",),
        options=tuple(_OPTIONS),
        compiles_shapes=True,  # during the run; some versions then fail (ROCm/AMDMIGraphX#4618)
    ),
    visibility=Visibility(variables=VARIABLES, environment=_environment),
)
