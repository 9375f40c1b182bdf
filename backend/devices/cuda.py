"""NVIDIA cards, and MIG instances of them, through torch and through llama.cpp.

CUDA enumerates at most one MIG instance in a process, and then no whole card (NVIDIA's MIG user guide, "CUDA Device
Enumeration"). So the instances come from NVML, and each process gets one by CUDA_VISIBLE_DEVICES. Not yet run on a card
in MIG mode.
"""

from __future__ import annotations

import os
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
from backend.devices._mechanisms.cuda_driver import explain_version, with_driver_facts
from backend.devices._mechanisms.mig import with_instances
from backend.devices._mechanisms.torch import build_name, is_rocm_build
from backend.devices._mechanisms.torch_cuda import (
    Addresses,
    add_selectors,
    driver_addresses,
    list_cards,
    mark_instances,
    only_vendor,
    open_card,
)

_LISTING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # by default the fastest card is first


def _environment(detected: DetectedDevice) -> dict[str, str]:
    """Return the variables that show only this card, by its UUID if torch reports one."""
    return {"CUDA_VISIBLE_DEVICES": detected.selector, **_LISTING}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of a torch built for CUDA, and the MIG instances that it leaves out. Raises DeviceAbsent."""
    listed = _list_cards(torch)
    return listed if "CUDA_VISIBLE_DEVICES" in os.environ else with_instances(listed)


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    return open_card(torch, detected, _list_cards(torch))


def _list_cards(torch: Any) -> list[DetectedDevice]:
    build = getattr(torch, "version", None)
    if is_rocm_build(torch) or getattr(build, "xpu", None):
        raise DeviceAbsent(f"This is {build_name(torch)}.", quiet=True)
    if not getattr(build, "cuda", None) and not torch.cuda.is_available():
        raise DeviceAbsent(f"This is {build_name(torch)}: it cannot reach NVIDIA cards.")
    cards = list_cards(torch, _addresses(), "NVIDIA")
    own = only_vendor(cards, amd=False)
    if not own:
        raise DeviceAbsent(f"This is {build_name(torch)}, and its cards are AMD's.", quiet=True)
    return add_selectors(mark_instances(own))


def _refine(listed: list[DetectedDevice], masked: bool) -> list[DetectedDevice]:
    """Add UUIDs to the cards that llama.cpp lists, and the MIG instances that CUDA leaves out."""
    cards = add_selectors(mark_instances(with_driver_facts(listed)))
    return cards if masked or "CUDA_VISIBLE_DEVICES" in os.environ else with_instances(cards)


def _addresses() -> Addresses:
    return driver_addresses(("libcuda.so.1", "nvcuda.dll"), "cuDeviceGetPCIBusId", by_ordinal=False)


BACKEND = Backend(
    name="cuda",
    label="CUDA",
    kind="gpu",
    rank=100,
    runtimes=("cuda", "torch", "llama-cuda"),
    systems=("linux", "win32"),
    vendors=("NVIDIA",),
    offers=(InstallOffer("llama-cuda"), InstallOffer("cuda")),
    torch=TorchSupport(_list_devices, _open_device, compiles=True),
    ggml=GgmlSupport(("cuda",), ("llama-cuda",), refine=_refine, explain=explain_version),
    visibility=Visibility(
        variables=("CUDA_VISIBLE_DEVICES",),
        hide_all={"CUDA_VISIBLE_DEVICES": "-1"},
        for_listing=_LISTING,
        environment=_environment,
    ),
)
