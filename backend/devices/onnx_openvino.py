"""Intel processors, GPUs and NPUs through OpenVINO."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="onnx-openvino",
    label="ONNX Runtime OpenVINO",
    kind="integrated",
    rank=180,
    runtimes=("openvino",),
    aliases=("openvino", "OpenVINOExecutionProvider", "OpenVinoExecutionProvider", "onnx_openvino"),
)
