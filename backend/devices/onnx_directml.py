"""Any DirectX 12 card on Windows through ONNX Runtime."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import Backend, InstallOffer, OnnxProvider

_OPTIONS = (
    "device_filter disable_metacommands enable_graph_capture enable_graph_serialization performance_preference"
).split()


def _prepare_session(options: Any) -> None:
    """Disable memory patterns, which DirectML does not support."""
    options.enable_mem_pattern = False


BACKEND = Backend(
    name="onnx-directml",
    label="ONNX Runtime DirectML",
    kind="gpu",
    rank=165,
    runtimes=("onnx-directml",),
    aliases=("onnx_dml", "DmlExecutionProvider", "DMLExecutionProvider", "DirectMLExecutionProvider", "onnx_directml"),
    systems=("win32",),
    offers=(InstallOffer("onnx-directml"),),
    onnx=OnnxProvider(
        names=("dml", "directml"),
        options=tuple(_OPTIONS),
        prepare_session=_prepare_session,
    ),
)
