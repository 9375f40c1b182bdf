"""AMD's NPU through Vitis AI, whose packages are part of AMD's Ryzen AI software."""

from __future__ import annotations

from backend.common.device_api import Backend, OnnxProvider

_OPTIONS = (
    "ai_analyzer_profiling ai_analyzer_visualization cache_dir cache_key config_file enable_cache_file_io_in_mem "
    "external_ep_libray log_level target xclbin xlnx_enable_py3_round"
).split()


def _cache_options(folder: str, provider: str) -> dict[str, str]:
    """Return the options that keep compiled graphs in the folder."""
    return {"cache_dir": folder}


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
    onnx=OnnxProvider(
        names=("vitisai",),
        options=tuple(_OPTIONS),
        rounds_inputs=True,
        cache_options=_cache_options,
    ),
)
