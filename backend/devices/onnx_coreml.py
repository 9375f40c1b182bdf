"""Apple's GPU and neural engine through CoreML."""

from __future__ import annotations

from backend.common.device_api import Backend, OnnxProvider

_OPTIONS = (
    "AllowLowPrecisionAccumulationOnGPU EnableOnSubgraphs MLComputeUnits ModelCacheDirectory ModelFormat "
    "ProfileComputePlan RequireStaticInputShapes SpecializationStrategy"
).split()


def _cache_options(folder: str, provider: str) -> dict[str, str]:
    """Return the options that keep compiled graphs in the folder."""
    return {"ModelCacheDirectory": folder}


BACKEND = Backend(
    name="onnx-coreml",
    label="ONNX Runtime CoreML",
    kind="gpu",
    rank=130,
    runtimes=("base",),
    aliases=("coreml", "CoreMLExecutionProvider", "onnx_coreml"),
    indexed=False,
    systems=("darwin",),
    vendors=("Apple",),
    onnx=OnnxProvider(
        names=("coreml",),
        options=tuple(_OPTIONS),
        rounds_inputs=True,
        compiles_shapes=True,  # ONNX Runtime's documentation recommends fixed shapes
        cache_options=_cache_options,
    ),
)
