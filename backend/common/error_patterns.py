"""Classify error texts of libraries and drivers by patterns. Server and child processes both use it.

The patterns match the texts that libraries and drivers print: CUDA and HIP error names, Vulkan result codes, DXGI and
Windows codes, and messages of the allocators of llama.cpp, ONNX Runtime and torch.
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
    """Return the error code `device_lost` or `out_of_memory`, None if the text matches neither."""
    if _LOST.search(text):
        return "device_lost"
    return "out_of_memory" if _NO_MEMORY.search(text) else None


def require_finite(highest: float) -> None:
    """Raise WorkerCrashed if a model's logits are not finite.

    `highest`: the maximum of the logits, which is NaN or infinite if any of them is. A device produces such logits
    after a fault, so the worker is replaced and the device counts it as a crash.
    """
    if not math.isfinite(highest):
        raise WorkerCrashed(
            "The model produced NaN or infinite logits, so no token can be sampled.",
            "Retry the job: a new worker runs it. If it fails again, refresh the devices, which probes it again.",
        )
