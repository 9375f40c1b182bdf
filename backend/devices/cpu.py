"""The processor: proved by each library that computes on it, against references in plain Python."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.system.resources import memory_bytes, memory_free_bytes
from backend.devices import Backend

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
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx", "torch": "_mechanisms.torch"}
PROVIDERS = ("cpu",)


def list_devices(torch: Any) -> list[DetectedDevice]:
    """The one processor, as torch uses it."""
    return [processor("torch")]


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place in the machine's own memory, which torch does not count."""
    from backend.devices._mechanisms.torch import TorchAccess

    return TorchAccess(torch, torch.device("cpu"), "cpu", lambda: None, None, memory_free_bytes, _number(torch))


def processor(library: str, provider: str | None = None) -> DetectedDevice:
    """The one processor, with the memory that this process may use."""
    return DetectedDevice(_name(), "cpu", "cpu:0", memory_bytes(), memory_free_bytes(), library, provider=provider)


def _number(torch: Any) -> str:
    """bfloat16 where the processor multiplies it itself, 1.5 times as fast on one with AVX-512; else float32."""
    tell = getattr(getattr(torch, "cpu", None), "get_capabilities", dict)
    told: dict[str, bool] = tell()
    return "bfloat16" if any(told.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16")) else "float32"


def _name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
