"""AMD cards through torch built for ROCm. Such a torch calls its module `cuda`, so the build is asked first."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, DeviceAbsent, InstallOffer

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
)
MECHANISMS = {"torch": "_mechanisms.torch"}
COMPILES = True
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")
HIDDEN = {"HIP_VISIBLE_DEVICES": "-1"}


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone; HIP takes places, not UUIDs."""
    return {"HIP_VISIBLE_DEVICES": str(found.position)}


def list_devices(torch: Any) -> list[DetectedDevice]:
    """Cards of a torch that was built for ROCm. Raises Absent."""
    from backend.devices._mechanisms.torch import build_name
    from backend.devices._mechanisms.torch_cuda import list_cards

    build = getattr(torch, "version", None)
    if not getattr(build, "hip", None):
        other = getattr(build, "cuda", None) or getattr(build, "xpu", None)
        raise DeviceAbsent(f"This is {build_name(torch)}: no AMD card can be reached with it.", quiet=bool(other))
    return list_cards(torch, _addresses())


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place on the card. Raises Absent."""
    from backend.devices._mechanisms.torch_cuda import take_card

    return take_card(torch, found, _addresses())


def _addresses() -> Any:
    from backend.devices._mechanisms.torch_cuda import driver_addresses, loaded_library

    names = (*loaded_library("libamdhip64"), "libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll")
    return driver_addresses(names, "hipDeviceGetPCIBusId", by_ordinal=True)
