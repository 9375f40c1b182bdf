"""AMD cards through torch built for ROCm. Such a torch calls its module `cuda`, so its build is checked first."""

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
from backend.devices._mechanisms.torch_cuda import Addresses, driver_addresses, list_cards, loaded_library, open_card


def _environment(detected: DetectedDevice) -> dict[str, str]:
    """Return the variables that show only this card. HIP accepts positions, not UUIDs."""
    return {"HIP_VISIBLE_DEVICES": str(detected.position)}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of a torch built for ROCm. Raises DeviceAbsent."""
    build = getattr(torch, "version", None)
    if not getattr(build, "hip", None):
        other = getattr(build, "cuda", None) or getattr(build, "xpu", None)
        raise DeviceAbsent(f"This is {build_name(torch)}: it cannot reach AMD cards.", quiet=bool(other))
    return list_cards(torch, _addresses())


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    return open_card(torch, detected, _addresses())


def _addresses() -> Addresses:
    names = (*loaded_library("libamdhip64"), "libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll")
    return driver_addresses(names, "hipDeviceGetPCIBusId", by_ordinal=True)


BACKEND = Backend(
    name="rocm",
    label="ROCm",
    kind="gpu",
    rank=110,
    runtimes=("rocm", "torch"),
    aliases=("hip",),
    systems=("linux", "win32"),
    vendors=("AMD",),
    offers=(InstallOffer("rocm", architectures=("gfx101", "gfx103", "gfx11", "gfx12", "gfx90", "gfx94", "gfx95")),),
    torch=TorchSupport(_list_devices, _open_device, compiles=True),
    visibility=Visibility(
        variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"),
        hide_all={"HIP_VISIBLE_DEVICES": "-1"},
        environment=_environment,
    ),
)
