"""Any card with a Vulkan driver, through llama.cpp."""

from __future__ import annotations

from backend.common.device_api import Backend, DetectedDevice, GgmlSupport, InstallOffer, Visibility
from backend.devices._mechanisms.ggml_vulkan import VARIABLE, list_devices, show_device


def _environment(detected: DetectedDevice) -> dict[str, str]:
    return {VARIABLE: str(detected.position)}


BACKEND = Backend(
    name="vulkan",
    label="Vulkan",
    kind="gpu",
    rank=170,
    runtimes=("llama-vulkan",),
    systems=("linux", "win32"),
    offers=(InstallOffer("llama-vulkan"),),
    ggml=GgmlSupport(
        ("vulkan",), ("llama-vulkan",), list_devices=list_devices, function="ggml_backend_vk_reg", prepare=show_device
    ),
    visibility=Visibility(variables=(VARIABLE,), hide_all={VARIABLE: ""}, environment=_environment),
)
