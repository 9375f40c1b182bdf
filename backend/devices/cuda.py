"""NVIDIA cards through torch."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import (
    Backend,
    DetectedDevice,
    DeviceAbsent,
    InstallOffer,
    TorchAccess,
    TorchSupport,
    Visibility,
)
from backend.devices._mechanisms.torch import build_name
from backend.devices._mechanisms.torch_cuda import Addresses, driver_addresses, list_cards, open_card

_LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # by default the fastest card is first


def _environment(detected: DetectedDevice) -> dict[str, str]:
    """Return the variables that show only this card, by its UUID if torch reports one."""
    return {"CUDA_VISIBLE_DEVICES": detected.identity.get("uuid", str(detected.position)), **_LISTING}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of a torch built for CUDA. Raises DeviceAbsent."""
    build = getattr(torch, "version", None)
    if getattr(build, "hip", None) or getattr(build, "xpu", None):
        raise DeviceAbsent(f"This is {build_name(torch)}.", quiet=True)
    if not getattr(build, "cuda", None) and not torch.cuda.is_available():
        raise DeviceAbsent(f"This is {build_name(torch)}: it cannot reach NVIDIA cards.")
    return list_cards(torch, _addresses())


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    return open_card(torch, detected, _addresses())


def _addresses() -> Addresses:
    return driver_addresses(("libcuda.so.1", "nvcuda.dll"), "cuDeviceGetPCIBusId", by_ordinal=False)


BACKEND = Backend(
    name="cuda",
    label="CUDA",
    kind="gpu",
    rank=100,
    runtimes=("cuda", "torch"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    offers=(InstallOffer("cuda"),),
    torch=TorchSupport(_list_devices, _open_device, compiles=True),
    visibility=Visibility(
        variables=("CUDA_VISIBLE_DEVICES",),
        hide_all={"CUDA_VISIBLE_DEVICES": "-1"},
        for_listing=_LISTING,
        environment=_environment,
    ),
)
