"""Apple's GPU and neural engine through CoreML."""

from __future__ import annotations

from backend.devices import Backend

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
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("coreml",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "AllowLowPrecisionAccumulationOnGPU EnableOnSubgraphs MLComputeUnits ModelCacheDirectory ModelFormat "
    "ProfileComputePlan RequireStaticInputShapes SpecializationStrategy"
).split()
COMPILES_SHAPES = True  # ONNX Runtime's pages advise fixed ones
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise


def cache_options(folder: str, provider: str) -> dict[str, str]:
    """Compiled graphs."""
    return {"ModelCacheDirectory": folder}
