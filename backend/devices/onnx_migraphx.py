"""AMD cards through MIGraphX."""

from __future__ import annotations

from backend.devices import Backend, Found, Offer

BACKEND = Backend(
    name="onnx-migraphx",
    label="ONNX Runtime MIGraphX",
    kind="gpu",
    rank=115,
    runtimes=("onnx-migraphx",),
    aliases=("migraphx", "MIGraphXExecutionProvider", "onnx_migraphx"),
    systems=("linux", "win32"),
    vendors=("AMD",),
    offers=(Offer("onnx-migraphx"),),
)
MECHANISMS = {"onnxruntime": "_onnx"}
PROVIDERS = ("migraphx",)
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def environment(found: Found) -> dict[str, str]:
    """That card alone, by its place."""
    return {"HIP_VISIBLE_DEVICES": str(found.position)}
