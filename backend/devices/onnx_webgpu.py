"""Any card with a Vulkan, Metal or DirectX 12 driver through WebGPU."""

from __future__ import annotations

import sys
from dataclasses import replace

from backend.common.device_api import Backend, DetectedDevice, OnnxProvider
from backend.devices._mechanisms.identity import hardware_id
from backend.devices._mechanisms.vulkan_loader import physical_devices

_OPTIONS = (
    "enableGraphCapture enableInt64 forceCpuNodeNames preferredLayout preserveDevice storageBufferCacheMode "
    "uniformBufferCacheMode validationMode"
).split()


def _refine(detected: DetectedDevice) -> DetectedDevice:
    """Add the card's name and kind from Vulkan: ONNX Runtime reports a software implementation as a GPU."""
    if sys.platform != "linux":
        return detected
    try:
        listed = physical_devices()
    except OSError:
        return detected
    cards = [card for card in listed if card.kind != "emulated"]
    same_address = [card for card in cards if card.pci and card.pci == detected.identity.get("pci")]
    if same_address or len(cards) == 1:
        card = (same_address or cards)[0]
        identity = {**detected.identity, **({"pci": card.pci} if card.pci else {})}
        return replace(detected, name=card.name, kind=card.kind, identity=identity, hardware_id=hardware_id(identity))
    if listed and not cards:  # whatever card ONNX Runtime lists, software on the processor computes
        return replace(
            detected,
            name=listed[0].name,
            kind="emulated",
            hardware_id="cpu:0",
            identity={"listed": detected.identity["listed"]},
        )
    return detected


BACKEND = Backend(
    name="onnx-webgpu",
    label="ONNX Runtime WebGPU",
    kind="gpu",
    rank=190,
    runtimes=("base", "webgpu"),
    aliases=("webgpu", "WebGpuExecutionProvider", "WebGPUExecutionProvider", "onnx_webgpu"),
    systems=("linux", "win32", "darwin"),
    onnx=OnnxProvider(names=("webgpu",), options=tuple(_OPTIONS), accuracy_level=4, lists_devices=True, refine=_refine),
)
