"""Facts of NVIDIA's cards from the driver's library, by PCI address. Runs in a child process.

Source: CUDA driver API, `cuDeviceGetByPCIBusId`, `cuDeviceGetUuid_v2` (since CUDA 11.4: a MIG instance has its own) and
`cuDeviceGetAttribute`, whose attributes 75 and 76 are the compute capability.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices._mechanisms.identity import hardware_id, uuid_text

NEEDED = 12, 4  # the CUDA version of the wheels that the runtime installs; the first driver for it is 550
_NAMES = ("libcuda.so.1", "nvcuda.dll")
_MAJOR, _MINOR = 75, 76


def with_driver_facts(listed: list[DetectedDevice]) -> list[DetectedDevice]:
    """Return cards that have an address with their UUIDs and compute capabilities; unchanged without a driver."""
    driver = _driver()
    return [_with_facts(card, driver) for card in listed] if driver else listed


def explain_version(reason: str) -> str:
    """Return why CUDA lists no card, with the version that the driver supports if that is too old."""
    driver, version = _library(), ctypes.c_int()
    if "insufficient" not in reason or driver is None or driver.cuDriverGetVersion(ctypes.byref(version)):
        return reason
    supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
    needed = ".".join(map(str, NEEDED))
    return f"{reason}: the driver here supports CUDA {supported}; this build needs CUDA {needed} (driver 550 or later)"


def _driver() -> Any:
    driver = _library()
    return driver if driver is not None and driver.cuInit(0) == 0 else None


def _library() -> Any:
    for name in _NAMES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _with_facts(card: DetectedDevice, driver: Any) -> DetectedDevice:
    device = ctypes.c_int()
    address = card.identity.get("pci", "").encode()
    if not address or driver.cuDeviceGetByPCIBusId(ctypes.byref(device), address):
        return card
    raw = (ctypes.c_ubyte * 16)()
    uuid = None if driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device) else uuid_text(bytes(raw).hex())
    identity = {**card.identity, "uuid": uuid} if uuid else card.identity
    return replace(
        card, identity=identity, hardware_id=hardware_id(identity), architecture=_compute_capability(driver, device)
    )


def _compute_capability(driver: Any, device: ctypes.c_int) -> str | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    return f"sm_{major.value}{minor.value}"
