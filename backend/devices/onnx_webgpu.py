"""Any card with a Vulkan, Metal or DirectX 12 driver through WebGPU."""

from __future__ import annotations

import sys
from dataclasses import replace

from backend.common.device_api import DetectedDevice
from backend.devices import Backend

BACKEND = Backend(
    name="onnx-webgpu",
    label="ONNX Runtime WebGPU",
    kind="gpu",
    rank=190,
    runtimes=("base", "webgpu"),
    aliases=("webgpu", "WebGpuExecutionProvider", "WebGPUExecutionProvider", "onnx_webgpu"),
    systems=("linux", "win32", "darwin"),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("webgpu",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "enableGraphCapture enableInt64 forceCpuNodeNames preferredLayout preserveDevice storageBufferCacheMode "
    "uniformBufferCacheMode validationMode"
).split()
LISTS_DEVICES = True  # so a provider that lists none has none


def refine(found: DetectedDevice) -> DetectedDevice:
    """What Vulkan says of the card: its name, and whether it is one. ONNX Runtime calls whatever draws a GPU."""
    from backend.devices._mechanisms.identity import hardware_id
    from backend.devices._mechanisms.vulkan_loader import physical_devices

    if sys.platform != "linux":
        return found
    try:
        listed = physical_devices()
    except OSError:
        return found
    cards = [card for card in listed if card.kind != "emulated"]
    own = [card for card in cards if card.pci and card.pci == found.identity.get("pci")]
    if own or len(cards) == 1:
        card = (own or cards)[0]
        identity = {**found.identity, **({"pci": card.pci} if card.pci else {})}
        return replace(found, name=card.name, kind=card.kind, identity=identity, hardware_id=hardware_id(identity))
    if listed and not cards:  # whatever card is listed, what computes is a program on the processor
        return replace(
            found,
            name=listed[0].name,
            kind="emulated",
            hardware_id="cpu:0",
            identity={"listed": found.identity["listed"]},
        )
    return found
