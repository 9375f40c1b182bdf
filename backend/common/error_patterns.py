"""Tells from an error's text what happened to the device. Standard library only: children and server both ask.

The words are those of the libraries and drivers themselves: CUDA and HIP error names, Vulkan results, DXGI and Windows
codes, and what allocators of llama.cpp, ONNX Runtime and torch print.
"""

from __future__ import annotations

import math
import re

from backend.common.errors import WorkerCrashed

_NO_MEMORY = re.compile(
    r"out of memory|insufficient memory|not enough memory|failed to allocate|cannot allocate memory|bad_alloc"
    r"|OutOfDeviceMemory|OutOfHostMemory|OUT_OF_DEVICE_MEMORY|OUT_OF_HOST_MEMORY|ErrorOutOfMemory|cudaErrorMemoryAllocation"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|E_OUTOFMEMORY|8007000E",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"DXGI_ERROR_DEVICE_(?:REMOVED|HUNG|RESET)|887A000[567]|ErrorDeviceLost|ERROR_DEVICE_LOST|device (?:was |is )?lost"
    r"|illegal memory access|unspecified launch failure|device-side assert|misaligned address|illegal instruction was"
    r"|launch timed out|uncorrectable ECC"
    r"|cudaError(?:IllegalAddress|LaunchFailure|Assert|HardwareStackError|ECCUncorrectable)"
    r"|CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|ASSERT|ECC_UNCORRECTABLE|DEVICE_UNAVAILABLE)"
    r"|hipError(?:IllegalAddress|LaunchFailure|ECCNotCorrectable|NoDevice)|HSA_STATUS_ERROR|GPU has fallen off the bus"
    r"|UR_RESULT_ERROR_DEVICE_LOST|PI_ERROR_DEVICE_NOT_AVAILABLE",
    re.IGNORECASE,
)


def classify_error_text(text: str) -> str | None:
    """`device_lost`, `out_of_memory`, or None where the text tells neither."""
    if _LOST.search(text):
        return "device_lost"
    return "out_of_memory" if _NO_MEMORY.search(text) else None


def require_finite(highest: float) -> None:
    """Judges what a model gave by its highest number, which is none if any of them is. Raises WorkerCrashed.

    A device does so after a fault: the worker is then replaced, and the device counts it like a death.
    """
    if not math.isfinite(highest):
        raise WorkerCrashed(
            "The model gave numbers that are none (NaN or infinite), so nothing can be chosen by them.",
            "Run the job again: it gets a new worker. If it repeats, refresh the device, which checks it.",
        )
