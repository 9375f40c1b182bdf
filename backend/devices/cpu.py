"""The processor: proved through each library that computes on it, against references in plain Python."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, OnnxProvider, TorchAccess, TorchSupport
from backend.common.system.resources import memory_bytes, memory_free_bytes


def _detect_for_onnx() -> DetectedDevice:
    return _processor("onnxruntime", "CPUExecutionProvider")


def _list_for_torch(torch: Any) -> list[DetectedDevice]:
    return [_processor("torch")]


def _open_for_torch(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open the processor. Its memory is the machine's, which torch does not count."""
    return TorchAccess(torch, torch.device("cpu"), "cpu", lambda: None, None, memory_free_bytes, _dtype(torch))


def _processor(library: str, provider: str | None = None) -> DetectedDevice:
    """Return the processor, with the memory that this process may use."""
    return DetectedDevice(_name(), "cpu", "cpu:0", memory_bytes(), memory_free_bytes(), library, provider=provider)


def _dtype(torch: Any) -> str:
    """Return bfloat16 if the processor multiplies it natively (1.5 times as fast on AVX-512), else float32."""
    get_capabilities = getattr(getattr(torch, "cpu", None), "get_capabilities", dict)
    capabilities: dict[str, bool] = get_capabilities()
    return "bfloat16" if any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16")) else "float32"


def _name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


BACKEND = Backend(
    name="cpu",
    label="CPU",
    kind="cpu",
    rank=900,
    runtimes=("base", "torch"),
    aliases=("cpu:0",),
    engine_aliases=(
        ("onnx", "text", "onnx-genai"),
        ("onnx", "*", "onnxruntime"),
        ("CPUExecutionProvider", "text", "onnx-genai"),
        ("CPUExecutionProvider", "*", "onnxruntime"),
    ),
    indexed=False,
    onnx=OnnxProvider(names=("cpu",), only_device=_detect_for_onnx, accuracy_level=4),
    torch=TorchSupport(_list_for_torch, _open_for_torch),
)
