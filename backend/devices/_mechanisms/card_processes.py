"""NVIDIA's own list of the processes on each card, from NVML: evidence independent of the computing library.

Sources: the NVML reference, `nvmlDeviceGetComputeRunningProcesses` and `nvmlProcessInfo_t`; `PROC_PID_INIT_INO` in
Linux' include/uapi/linux/nsfs.h and include/linux/proc_ns.h. NVML lists process ids of the machine, so in a container,
which has its own, nothing is known. It may hang if a card fell off the bus, so a thread asks, with a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from backend.common.device_api import Backend, DetectedDevice
from backend.common.types import Placement
from backend.devices._mechanisms.identity import pci_address, uuid_text
from backend.devices._mechanisms.nvml_structures import PciInfo

LIMIT_S = 1.0
_TEXT = 96
_MOST_PROCESSES = 256
_UNKNOWN_BYTES = 2**64 - 1
_INITIAL_PIDS = "pid:[4026531836]"


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, version 2 and 3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class CardUse:
    """A card that a process has a context on, by address and UUID, and the bytes that it holds there if known."""

    pci: str | None
    uuid: str | None
    bytes: int | None

    def is_card(self, pci: str | None, uuid: str | None) -> bool:
        """Return whether it is the card with this address, or this UUID."""
        return bool(pci and pci == self.pci) or bool(uuid and uuid == self.uuid)


class CardProcesses:
    """Asks NVML for the cards of this process. After one question without an answer none is asked."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml` is the library. Default: it is opened at the first question."""
        self._nvml = nvml
        self._hangs = False

    def find(self, pid: int) -> list[CardUse] | None:
        """Return the cards that a process uses; None if that is unknown."""
        if self._hangs:
            return None
        found: list[list[CardUse]] = []
        thread = threading.Thread(target=lambda: found.extend(self._ask(pid)), daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        self._hangs = thread.is_alive()
        return found[0] if found else None

    def _ask(self, pid: int) -> Iterator[list[CardUse]]:
        with contextlib.suppress(OSError, AttributeError):  # no library, or an old one
            if self._nvml is None:
                nvml: Any = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
                if nvml.nvmlInit_v2():
                    return
                self._nvml = nvml
            uses = list(_uses(self._nvml, pid))
            if None not in uses:
                yield [use for use in uses if use]


def has_machine_pids() -> bool:
    """Return whether this process knows its id on the machine: not in a container with separate ids."""
    if sys.platform != "linux":
        return sys.platform == "win32"
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PIDS  # noqa: PTH115 (no path: the target is a name)
    except OSError:
        return False


def _uses(nvml: Any, pid: int) -> Iterator[CardUse | None]:
    """Yield the cards that list the process, None for a card whose list cannot be read."""
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        yield None
    for index in range(count.value):
        card = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)):
            yield None
            continue
        listed, number = (_Process * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(number), listed):
            yield None
            continue
        held = [process.usedGpuMemory for process in listed[: number.value] if process.pid == pid]
        if held:
            known = [used for used in held if used != _UNKNOWN_BYTES]
            yield CardUse(*_identity(nvml, card), sum(known) if known else None)


def _identity(nvml: Any, card: ctypes.c_void_p) -> tuple[str | None, str | None]:
    pci, text = PciInfo(), ctypes.create_string_buffer(_TEXT)
    no_address = nvml.nvmlDeviceGetPciInfo_v3(card, ctypes.byref(pci))
    no_uuid = nvml.nvmlDeviceGetUUID(card, text, _TEXT)
    address = None if no_address else pci_address(pci.busId.decode("ascii", "replace"))
    return address, None if no_uuid else uuid_text(text.value.decode("ascii", "replace"))


class DriverWitness:
    """Compares a library's placement on one NVIDIA card with the driver's list of this process."""

    def __init__(self, detected: DetectedDevice, processes: CardProcesses) -> None:
        self._pci, self._uuid = detected.identity.get("pci"), detected.identity.get("uuid")
        self._processes = processes

    def check(self, placement: Placement) -> Placement:
        """Return the placement with the driver's evidence; without shares if the driver contradicts the library."""
        if not placement.on_device or not (self._pci or self._uuid) or not has_machine_pids():
            return placement
        uses = self._processes.find(os.getpid())
        if uses is None:
            return placement
        for use in uses:
            if use.is_card(self._pci, self._uuid):
                held = "" if use.bytes is None else f", with {use.bytes} bytes there"
                return replace(
                    placement, evidence=f"{placement.evidence} NVIDIA's driver lists this process on the card{held}."
                )
        if uses:
            others = ", ".join(use.pci or use.uuid or "a card without an identity" for use in uses)
            contradiction = f"NVIDIA's driver lists this process on {others} and not on the card: placement unknown."
            return Placement(None, [], f"{placement.evidence} {contradiction}")
        return replace(placement, evidence=f"{placement.evidence} NVIDIA's driver does not list this process.")


def driver_witness(backend: Backend, detected: DetectedDevice | None) -> DriverWitness | None:
    """Return the witness for a card, None for a device that NVML does not know."""
    is_nvidia = backend.vendors == ("NVIDIA",)
    return DriverWitness(detected, CardProcesses()) if detected and is_nvidia else None
