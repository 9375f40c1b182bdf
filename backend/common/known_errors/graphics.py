"""Vulkan, DirectX, WebGPU and Metal, and builds for other hardware."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

KNOWN = (
    KnownError(
        "wrong-build",
        r"built for (?:the processor alone|CUDA|ROCm|Intel|Apple)|not compiled with",
        "Install a build for this card: {build}; or reinstall it: {reinstall}. To use your own environment, name it "
        "under `runtimes` in config.yaml. Then refresh.",
        "runtime package",
        source="https://github.com/Comfy-Org/ComfyUI/pull/16438",
    ),
    KnownError(
        "vulkan-lost",
        r"ErrorDeviceLost|VK_ERROR_DEVICE_LOST|DeviceLostError",
        {
            "win32": "Windows reset the card. Refresh; if it repeats, update the graphics driver and undo "
            "overclocking.",
            "any": "The driver reset the card: `sudo dmesg` shows why. Refresh; if it repeats, update the kernel and "
            "Mesa or the vendor's driver, or restart the machine.",
        },
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/ggml-org/llama.cpp/issues/18962",
    ),
    KnownError(
        "vulkan-layer",
        r"LAYER_NOT_PRESENT|ErrorLayerNotPresent",
        "A Vulkan layer that is switched on is not installed: remove it from VK_INSTANCE_LAYERS (and "
        "VK_LOADER_LAYERS_ENABLE), restart the server, then refresh.",
        "driver",
        source="https://github.com/synodic/soul-engine/issues/227",
    ),
    KnownError(
        "vulkan-driver",
        r"vkCreateInstance|createInstance\w*: ErrorIncompatibleDriver|IncompatibleDriver|ERROR_INCOMPATIBLE_DRIVER"
        r"|create(?:Instance|Device): Error(?:InitializationFailed|ExtensionNotPresent|FeatureNotPresent)"
        r"|failed to get a webgpu adapter|no supported adapters",
        {
            "container": "No Vulkan driver works for the card in this container: start it with `--device /dev/dri` "
            "(NVIDIA: `--gpus all -e NVIDIA_DRIVER_CAPABILITIES=all`), and install mesa-vulkan-drivers in the image. "
            "Then refresh.",
            "wsl": "No Vulkan driver works for the card in WSL: install Mesa 24 or newer (mesa-vulkan-drivers, with "
            "the driver dzn) and update the graphics driver in Windows, or use Touchstone in Windows. Check that "
            "VK_DRIVER_FILES does not hide the driver. Then refresh.",
            "win32": "No Vulkan driver works for the card: update the graphics driver of its vendor, check that "
            "VK_DRIVER_FILES does not hide it, then refresh.",
            "darwin": "No Vulkan driver works for the card: macOS has none; use Metal or the CPU.",
            "any": "No Vulkan driver works for the card: install it (`sudo apt-get install -y mesa-vulkan-drivers`, "
            "or the vendor's), check that VK_DRIVER_FILES does not hide it and that your user is in the group render, "
            "then refresh.",
        },
        "driver",
        source="https://github.com/ggml-org/llama.cpp/issues/11493",
    ),
    KnownError(
        "directx-reset",
        r"DXGI_ERROR_(?:DEVICE_(?:REMOVED|HUNG|RESET)|DRIVER_INTERNAL_ERROR)|887A000[567]|887A0020"
        r"|GPU device instance has been (?:suspended|paused)|GPU will not respond to more commands",
        "Windows reset or removed the card: a computation took too long, or the driver failed. Update the graphics "
        "driver, undo overclocking, close other programs that use the card, then refresh.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/microsoft/onnxruntime/issues/22700",
    ),
    KnownError(
        "directx-unsupported",
        r"887A0004|DXGI_ERROR_UNSUPPORTED|device interface or feature level is not supported",
        "The adapter or its driver does not support DirectX 12 as DirectML needs it: update the graphics driver and "
        "Windows, or use another device; then refresh.",
        "driver",
        absent=False,
        source="https://github.com/dr87/Vonovox/issues/2",
    ),
    KnownError(
        "device-lost",
        r"device (?:was |is )?lost\b",
        "The device was lost. Restart the machine, or reset the device by its driver's tool, then refresh.",
        "driver",
        absent=False,
        code="device_lost",
    ),
)
