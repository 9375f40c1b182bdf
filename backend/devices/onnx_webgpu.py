"""Any card with a Vulkan, Metal or DirectX 12 driver through WebGPU."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-webgpu",
    label="ONNX Runtime WebGPU",
    kind="gpu",
    rank=190,
    runtimes=("webgpu",),
    aliases=("webgpu", "WebGpuExecutionProvider", "WebGPUExecutionProvider", "onnx_webgpu"),
    systems=("linux", "win32", "darwin"),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("webgpu",)
LISTS_DEVICES = True  # so a provider that lists none has none
