"""AMD's NPU through Vitis AI, whose packages come with AMD's Ryzen AI software."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-vitisai",
    label="ONNX Runtime Vitis AI",
    kind="npu",
    rank=210,
    runtimes=("vitisai",),
    aliases=("vitisai", "VitisAIExecutionProvider", "onnx_vitisai"),
    indexed=False,
    systems=("win32", "linux"),
    vendors=("AMD",),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("vitisai",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "ai_analyzer_profiling ai_analyzer_visualization cache_dir cache_key config_file enable_cache_file_io_in_mem "
    "external_ep_libray log_level target xclbin xlnx_enable_py3_round"
).split()
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise


def cache_options(folder: str, provider: str) -> dict[str, str]:
    """Compiled graphs."""
    return {"cache_dir": folder}
