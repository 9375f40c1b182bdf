"""Any DirectX 12 card on Windows through ONNX Runtime."""

from __future__ import annotations

from typing import Any

from backend.devices import Backend, InstallOffer

BACKEND = Backend(
    name="onnx-directml",
    label="ONNX Runtime DirectML",
    kind="gpu",
    rank=165,
    runtimes=("onnx-directml",),
    aliases=("onnx_dml", "DmlExecutionProvider", "DMLExecutionProvider", "DirectMLExecutionProvider", "onnx_directml"),
    systems=("win32",),
    offers=(InstallOffer("onnx-directml"),),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("dml", "directml")
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "device_filter disable_metacommands enable_graph_capture enable_graph_serialization performance_preference".split()
)


def prepare_session(options: Any) -> None:
    """DirectML plans its own memory, and its sessions run one node after the other."""
    options.enable_mem_pattern = False
