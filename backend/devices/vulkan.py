"""Any Vulkan card through llama.cpp's server."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="vulkan",
    label="Vulkan",
    kind="gpu",
    rank=170,
    runtimes=("vulkan",),
)
