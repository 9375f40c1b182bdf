"""AMD cards through torch built for ROCm, and through llama.cpp.

Such a torch calls its module `cuda`, so its build is checked first.
"""

from __future__ import annotations

from typing import Any

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
from backend.devices._mechanisms.hip_variables import VARIABLES
from backend.devices._mechanisms.torch import build_name, is_rocm_build, loaded_library
from backend.devices._mechanisms.torch_cuda import (
    Addresses,
    cards_listed_before,
    driver_addresses,
    list_cards,
    only_vendor,
    open_card,
)


def _environment(detected: DetectedDevice) -> dict[str, str]:
    """Return the variables that show only this card. HIP accepts positions, not UUIDs."""
    return {"HIP_VISIBLE_DEVICES": str(detected.position)}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of a torch that reaches AMD's. Raises DeviceAbsent.

    A torch that names no platform, or that was built for CUDA and translates, is known by its cards.
    """
    build = getattr(torch, "version", None)
    if is_rocm_build(torch):
        return list_cards(torch, _addresses(), "AMD")
    other = getattr(build, "cuda", None) or getattr(build, "xpu", None)
    refusal = DeviceAbsent(f"This is {build_name(torch)}: it cannot reach AMD cards.", quiet=bool(other))
    if other:  # torch.cuda was listed before; a second call could hang or crash again
        cards = cards_listed_before()
    else:
        cards = list_cards(torch, _addresses(), "AMD") if torch.cuda.is_available() else []
    own = only_vendor(cards, amd=True)
    if not own:
        raise refusal
    return own


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    return open_card(torch, detected, list_cards(torch, _addresses(), "AMD"))


def _addresses() -> Addresses:
    names = (*loaded_library("libamdhip64"), "libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll")
    return driver_addresses(names, "hipDeviceGetPCIBusId", by_ordinal=True)


BACKEND = Backend(
    name="rocm",
    label="ROCm",
    kind="gpu",
    rank=110,
    runtimes=("rocm", "torch", "llama-rocm"),
    aliases=("hip",),
    systems=("linux", "win32"),
    vendors=("AMD",),
    offers=(
        InstallOffer("rocm", architectures=("gfx101", "gfx103", "gfx11", "gfx12", "gfx90", "gfx94", "gfx95")),
        InstallOffer("llama-rocm", architectures=("gfx90a", "gfx942", "gfx1100")),  # what the wheel is built for
    ),
    torch=TorchSupport(_list_devices, _open_device, compiles=True),
    ggml=GgmlSupport(("hip", "rocm"), ("llama-rocm",)),
    visibility=Visibility(
        variables=VARIABLES,
        hide_all={"HIP_VISIBLE_DEVICES": "-1"},
        environment=_environment,
    ),
)
