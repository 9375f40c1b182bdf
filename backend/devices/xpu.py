"""Intel cards through torch, and through llama.cpp built with SYCL."""

from __future__ import annotations

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
from backend.devices._mechanisms.card_list import describe_all
from backend.devices._mechanisms.identity import (
    free_size,
    hardware_id,
    match_device,
    size,
    uuid_text,
)
from backend.devices._mechanisms.level_zero import with_uuids
from backend.devices._mechanisms.torch import build_name, device_named, preferred_dtype
from backend.devices._mechanisms.torch_cuda import counter


def _environment(detected: DetectedDevice) -> dict[str, str]:
    """Return the variables that show only this card. Level Zero accepts positions."""
    return {"ZE_AFFINITY_MASK": str(detected.position)}


def _list_devices(torch: Any) -> list[DetectedDevice]:
    """List the cards of a torch built for Intel's. Raises DeviceAbsent."""
    xpu, build = getattr(torch, "xpu", None), getattr(torch, "version", None)
    if xpu is None or not getattr(build, "xpu", None):
        other = getattr(build, "cuda", None) or getattr(build, "hip", None)
        raise DeviceAbsent(f"This is {build_name(torch)}: it cannot reach Intel cards.", quiet=bool(other))
    count = int(xpu.device_count()) if xpu.is_available() else 0
    if not count:
        raise DeviceAbsent(
            "it lists no card (is Intel's compute runtime, libze-intel-gpu1 and intel-opencl-icd, installed?)"
        )
    return describe_all(lambda position: _describe_card(xpu, position, count), count, "Intel", "torch")


def _open_device(torch: Any, detected: DetectedDevice) -> TorchAccess:
    """Open a card. Raises DeviceAbsent."""
    position = match_device(detected, _list_devices(torch)).position
    xpu = torch.xpu
    return TorchAccess(
        torch,
        device_named(torch, "xpu", position),
        "xpu",
        lambda: xpu.synchronize(position),
        counter(xpu, "memory_allocated", position),
        lambda: free_size(xpu.mem_get_info(position)[0]) if hasattr(xpu, "mem_get_info") else None,
        preferred_dtype(xpu),
    )


def _refine(listed: list[DetectedDevice], masked: bool) -> list[DetectedDevice]:
    """Add UUIDs to the cards that llama.cpp lists, by which torch knows them."""
    return with_uuids(listed)


def _describe_card(xpu: Any, position: int, count: int) -> DetectedDevice:
    facts = xpu.get_device_properties(position)
    uuid = uuid_text(getattr(facts, "uuid", None))
    identity = {"uuid": uuid} if uuid else {}
    return DetectedDevice(
        name=clean_name(getattr(facts, "name", "") or xpu.get_device_name(position)),
        kind="integrated" if getattr(facts, "is_integrated_gpu", False) else "gpu",
        hardware_id=hardware_id(identity),
        memory_bytes=size(getattr(facts, "total_memory", None)),
        memory_free_bytes=None,
        library="torch",
        position=position,
        count=count,
        identity=identity,
    )


BACKEND = Backend(
    name="xpu",
    label="Intel XPU",
    kind="gpu",
    rank=140,
    runtimes=("xpu", "torch", "llama-sycl"),
    systems=("linux", "win32"),
    vendors=("Intel",),
    offers=(InstallOffer("xpu"), InstallOffer("llama-sycl")),
    torch=TorchSupport(_list_devices, _open_device),
    ggml=GgmlSupport(("sycl",), ("llama-sycl",), refine=_refine),
    visibility=Visibility(
        variables=("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER", "SYCL_DEVICE_ALLOWLIST"),
        environment=_environment,
    ),
)
