"""The environment variables that hide AMD cards.

ROCR_VISIBLE_DEVICES acts first, in the ROCm runtime on Linux, and accepts UUIDs. The others act in HIP on what is
left: HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES for compatibility, and GPU_DEVICE_ORDINAL, which OpenCL uses too.
Source: AMD's page "GPU isolation techniques".
"""

from __future__ import annotations

VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")
