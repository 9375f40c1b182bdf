"""Apple's GPU through torch."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, DeviceAbsent, InstallOffer

BACKEND = Backend(
    name="mps",
    label="Apple Metal (MPS)",
    kind="gpu",
    rank=150,
    runtimes=("torch",),
    indexed=False,
    systems=("darwin",),
    vendors=("Apple",),
    offers=(InstallOffer("torch"),),
)
MECHANISMS = {"torch": "_mechanisms.torch"}
LISTING = {"PYTORCH_ENABLE_MPS_FALLBACK": "0"}  # else single operations run on the processor without a word


def list_devices(torch: Any) -> list[DetectedDevice]:
    """The one GPU. Raises Absent."""
    from backend.devices._mechanisms.identity import clean, size
    from backend.devices._mechanisms.torch import build_name

    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is None or not mps.is_built():
        raise DeviceAbsent(f"This is {build_name(torch)}: Apple's GPU cannot be reached with it.", quiet=True)
    if not mps.is_available():
        raise DeviceAbsent("it lists no GPU (macOS 14 or later and an Apple or AMD GPU are needed)")
    name = mps.get_name() if hasattr(mps, "get_name") else BACKEND.label
    limit = getattr(torch.mps, "recommended_max_memory", lambda: None)()
    return [DetectedDevice(clean(name), "integrated", "metal:0", size(limit), None, "torch")]


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place on it. Raises Absent."""
    from backend.devices._mechanisms.torch import TorchAccess
    from backend.devices._mechanisms.torch_cuda import counter

    list_devices(torch)
    mps = torch.mps
    return TorchAccess(torch, torch.device("mps"), "mps", mps.synchronize, counter(mps, "current_allocated_memory"))
