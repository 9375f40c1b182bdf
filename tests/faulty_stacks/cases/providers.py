"""ONNX Runtime stacks whose providers have other names or do not work."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import PCI, READY, WRONG_REMEDY, Case

ONNX = ("onnxruntime",)
_NAMED = "provider names"
_KEPT = "promises of providers"


def onnx(*names: str, **more: Any) -> dict[str, Any]:
    """Return a plan with one device per provider."""
    return {"devices": [{"ep_name": name, "metadata": {"pci_bus_id": "0000:01:00.0"}} for name in names], **more}


CASES = [
    Case(_NAMED, "as documented", onnx("CUDAExecutionProvider"), **READY, device="onnx-cuda:0", packages=ONNX),
    Case(_NAMED, "other letters", onnx("CudaExecutionProvider"), **READY, device="onnx-cuda:0", packages=ONNX),
    Case(
        _NAMED,
        "spelled out",
        onnx("DirectMLExecutionProvider"),
        **READY,
        device="onnx-directml:0",
        packages=ONNX,
        also={"hardware_id": PCI},
    ),
    Case(_NAMED, "without its ending", onnx("OpenVINO"), **READY, device="onnx-openvino:0", packages=ONNX),
    Case(
        _NAMED,
        "its successor's",
        onnx("NvTensorRTRTXExecutionProvider"),
        **READY,
        device="onnx-tensorrt:0",
        packages=ONNX,
    ),
    Case(
        _NAMED,
        "beside an unknown one",
        onnx("FooExecutionProvider", "MIGraphXExecutionProvider"),
        **READY,
        device="onnx-migraphx:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "compiled in without a library",
        {"available": ["CUDAExecutionProvider", "CPUExecutionProvider"]},
        "unavailable",
        "installed",
        "driver",
        "its provider is installed and lists no device",
        device="onnx-cuda:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "Intel's, on another maker's processor",
        {"available": ["OpenVINOExecutionProvider", "CPUExecutionProvider"]},
        "unavailable",
        "installed",
        "driver",
        "supports only Intel devices and lists no device here; for text .* the engine openvino-genai",
        device="onnx-openvino:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "a library missing",
        {
            "available": ["CUDAExecutionProvider"],
            "register": "libcublasLt.so.13: cannot open shared object file: No such file or directory",
            "library": "libonnxruntime_providers_cuda.so",
        },
        "unavailable",
        "installed",
        "library load",
        "library does not load: .*libcublasLt.so.13",
        "install 'nvidia-cublas==13",
        device="onnx-cuda:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "the driver missing",
        {
            "available": ["CUDAExecutionProvider"],
            "register": "libcuda.so.1: cannot open shared object file: No such file or directory",
            "library": "libonnxruntime_providers_cuda.so",
        },
        "unavailable",
        "installed",
        "driver",
        "libcuda.so.1",
        "comes with NVIDIA's driver",
        device="onnx-cuda:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "accepts no node",
        {"available": ["MIGraphXExecutionProvider", "CPUExecutionProvider"]},
        "unavailable",
        "visible",
        "driver",
        "MIGraphXExecutionProvider is built in but accepts no node",
        device="onnx-migraphx:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "the processor's work",
        onnx("CUDAExecutionProvider", truth=True),
        reason="given to CUDAExecutionProvider, but ran on cpu",
        remedy=WRONG_REMEDY,
        device="onnx-cuda:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "wrong numbers",
        onnx("MIGraphXExecutionProvider", scale=2.0),
        reason="Wrong result: MatMul float32 .*all are 2 times",
        remedy=WRONG_REMEDY,
        device="onnx-migraphx:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "no adapter",
        onnx("WebGpuExecutionProvider", session="Failed to get a WebGPU adapter: No supported adapters"),
        "unavailable",
        "visible",
        "driver",
        "Failed to get a WebGPU adapter",
        "mesa-vulkan-drivers",
        device="onnx-webgpu:0",
        packages=ONNX,
    ),
    Case(
        _KEPT,
        "for offline use alone",
        {
            "devices": [{"ep_name": "OpenVINOExecutionProvider", "type": "NPU", "metadata": {"is_virtual": "1"}}],
            "available": ["OpenVINOExecutionProvider"],
        },
        "unavailable",
        "installed",
        "driver",
        "lists no device",
        device="onnx-openvino:0",
        packages=ONNX,
    ),
]
