"""Intel cards through torch."""

from __future__ import annotations

from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import Backend, DeviceAbsent, InstallOffer

BACKEND = Backend(
    name="xpu",
    label="Intel XPU",
    kind="gpu",
    rank=140,
    runtimes=("xpu", "torch"),
    systems=("linux", "win32"),
    vendors=("Intel",),
    offers=(InstallOffer("xpu"),),
)
MECHANISMS = {"torch": "_mechanisms.torch"}
HIDING = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")


def environment(found: DetectedDevice) -> dict[str, str]:
    """That card alone; Level Zero takes places."""
    return {"ZE_AFFINITY_MASK": str(found.position)}


def list_devices(torch: Any) -> list[DetectedDevice]:
    """Cards of a torch that was built for Intel's. Raises Absent."""
    from backend.devices._mechanisms.torch import build_name

    xpu, build = getattr(torch, "xpu", None), getattr(torch, "version", None)
    if xpu is None or not getattr(build, "xpu", None):
        other = getattr(build, "cuda", None) or getattr(build, "hip", None)
        raise DeviceAbsent(f"This is {build_name(torch)}: no Intel card can be reached with it.", quiet=bool(other))
    count = int(xpu.device_count()) if xpu.is_available() else 0
    if not count:
        raise DeviceAbsent(
            "it lists no card (is Intel's compute runtime, libze-intel-gpu1 and intel-opencl-icd, installed?)"
        )
    return [_found(xpu, position, count) for position in range(count)]


def take_place(torch: Any, found: DetectedDevice) -> Any:
    """A place on the card. Raises Absent."""
    from backend.devices._mechanisms.identity import chosen, size
    from backend.devices._mechanisms.torch import TorchAccess, device_named, short_number
    from backend.devices._mechanisms.torch_cuda import counter

    place = chosen(found, list_devices(torch)).position
    xpu = torch.xpu
    return TorchAccess(
        torch,
        device_named(torch, "xpu", place),
        "xpu",
        lambda: xpu.synchronize(place),
        counter(xpu, "memory_allocated", place),
        lambda: size(xpu.mem_get_info(place)[0]) if hasattr(xpu, "mem_get_info") else None,
        short_number(xpu),
    )


def _found(xpu: Any, position: int, count: int) -> DetectedDevice:
    from backend.devices._mechanisms.identity import clean, hardware_id, size, uuid_text

    facts = xpu.get_device_properties(position)
    uuid = uuid_text(getattr(facts, "uuid", None))
    identity = {"uuid": uuid} if uuid else {}
    return DetectedDevice(
        name=clean(getattr(facts, "name", "") or xpu.get_device_name(position)),
        kind="integrated" if getattr(facts, "is_integrated_gpu", False) else "gpu",
        hardware_id=hardware_id(identity),
        memory_bytes=size(getattr(facts, "total_memory", None)),
        memory_free_bytes=None,
        library="torch",
        position=position,
        count=count,
        identity=identity,
    )
