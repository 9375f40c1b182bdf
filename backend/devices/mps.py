"""Apple's GPU through torch and through llama.cpp."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import (
    Backend,
    DetectedDevice,
    DeviceAbsent,
    GgmlSupport,
    InstallOffer,
    TorchAccess,
    TorchSupport,
    Visibility,
)
from backend.common.types import DeviceKind
from backend.devices._mechanisms.identity import size
from backend.devices._mechanisms.torch import build_name
from backend.devices._mechanisms.torch_cuda import counter


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the GPU. Raises DeviceAbsent."""
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is None or not mps.is_built():
        raise DeviceAbsent(f"This is {build_name(torch)}: it cannot reach Apple's GPU.", quiet=True)
    if not mps.is_available():
        raise DeviceAbsent("it lists no GPU (requires macOS 14 or later and an Apple or AMD GPU)")
    name = clean_name(mps.get_name() if hasattr(mps, "get_name") else BACKEND.label)
    limit = getattr(torch.mps, "recommended_max_memory", lambda: None)()
    return [DetectedDevice(name, _kind(name), "metal:0", size(limit), None, "torch")]


def _kind(name: str) -> DeviceKind:
    """Return the kind: a Radeon in an Intel Mac has dedicated memory; Apple's and Intel's GPUs share the system's."""
    return "gpu" if re.search(r"\bAMD\b|Radeon|FirePro|GeForce", name, re.IGNORECASE) else "integrated"


def _refine(listed: list[DetectedDevice], masked: bool) -> list[DetectedDevice]:
    """Return the first GPU that llama.cpp lists, as torch lists it."""
    return [replace(card, kind=_kind(card.name), hardware_id="metal:0", count=1) for card in listed[:1]]


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open the GPU. Raises DeviceAbsent."""
    _list_devices(torch)
    mps = torch.mps
    return TorchAccess(torch, torch.device("mps"), "mps", mps.synchronize, counter(mps, "current_allocated_memory"))


BACKEND = Backend(
    name="mps",
    label="Apple Metal (MPS)",
    kind="gpu",
    rank=150,
    runtimes=("torch", "base", "llama-metal"),
    indexed=False,
    systems=("darwin",),
    vendors=("Apple",),
    offers=(InstallOffer("torch"),),
    torch=TorchSupport(_list_devices, _open_device),
    ggml=GgmlSupport(("metal", "mtl"), ("base", "llama-metal"), refine=_refine),
    # With the fallback enabled, single operations silently run on the processor.
    visibility=Visibility(for_listing={"PYTORCH_ENABLE_MPS_FALLBACK": "0"}),
)
