"""NVIDIA cards through torch."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, DeviceAbsent, InstallOffer

BACKEND = Backend(
    name="cuda",
    label="CUDA",
    kind="gpu",
    rank=100,
    runtimes=("cuda", "torch"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    offers=(InstallOffer("cuda"),),
)
MECHANISMS = {"torch": "_mechanisms.torch"}
COMPILES = True
HIDING = ("CUDA_VISIBLE_DEVICES",)
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}
LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # else the fastest card comes first


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone, by its UUID where torch tells it."""
    return {"CUDA_VISIBLE_DEVICES": found.identity.get("uuid", str(found.position)), **LISTING}


def list_devices(torch: Any) -> list[DetectedDevice]:
    """Cards of a torch that was built for CUDA. Raises Absent."""
    from backend.devices._mechanisms.torch import build_name
    from backend.devices._mechanisms.torch_cuda import list_cards

    build = getattr(torch, "version", None)
    if getattr(build, "hip", None) or getattr(build, "xpu", None):
        raise DeviceAbsent(f"This is {build_name(torch)}.", quiet=True)
    if not getattr(build, "cuda", None) and not torch.cuda.is_available():
        raise DeviceAbsent(f"This is {build_name(torch)}: no NVIDIA card can be reached with it.")
    return list_cards(torch, _addresses())


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place on the card. Raises Absent."""
    from backend.devices._mechanisms.torch_cuda import take_card

    return take_card(torch, found, _addresses())


def _addresses() -> Any:
    from backend.devices._mechanisms.torch_cuda import driver_addresses

    return driver_addresses(("libcuda.so.1", "nvcuda.dll"), "cuDeviceGetPCIBusId", by_ordinal=False)
