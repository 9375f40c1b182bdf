"""NVIDIA and AMD cards through `torch.cuda`: listed with their identity, and matched by it when opened."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from backend.common.device_api import DetectedDevice, DeviceAbsent, TorchAccess
from backend.devices._mechanisms.identity import clean, hardware_id, match_device, pci_address, size, uuid_text
from backend.devices._mechanisms.torch import device_named, preferred_dtype

# Returns the PCI address of a card by its position. The C libraries of both vendors have such a function.
Addresses = Callable[[int], "str | None"]


def list_cards(torch: Any, addresses: Addresses) -> list[DetectedDevice]:
    """List all cards of `torch.cuda`. Raises DeviceAbsent with the library's own reason if there is none."""
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if count < 1:
        raise DeviceAbsent(_absence_reason(torch))
    return [_describe_card(torch, position, count, addresses) for position in range(count)]


def open_card(torch: Any, detected: DetectedDevice, addresses: Addresses) -> TorchAccess:
    """Open a listed card. Raises DeviceAbsent if it is gone."""
    position = match_device(detected, list_cards(torch, addresses)).position
    cuda = torch.cuda
    return TorchAccess(
        torch,
        device_named(torch, "cuda", position),
        "cuda",
        lambda: cuda.synchronize(position) if hasattr(cuda, "synchronize") else None,
        counter(cuda, "memory_allocated", position),
        lambda: size(cuda.mem_get_info(position)[0]) if hasattr(cuda, "mem_get_info") else None,
        preferred_dtype(cuda),
        can_record=hasattr(cuda, "CUDAGraph"),
    )


def counter(module: Any, name: str, *arguments: Any) -> Callable[[], int] | None:
    """Return a function that returns the allocator's bytes in use, None if this version has no such count."""
    count = getattr(module, name, None)
    return None if count is None else lambda: int(count(*arguments))


def driver_addresses(names: tuple[str, ...], function: str, by_ordinal: bool) -> Addresses:
    """Return a function that asks the vendor's C library for PCI addresses.

    `by_ordinal`: the C function takes a position. Default for others: it takes a driver's handle.
    """

    def address(position: int) -> str | None:
        for name in names:
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(name)
                handle = ctypes.c_int(position)
                if not by_ordinal and (library.cuInit(0) or library.cuDeviceGet(ctypes.byref(handle), position)):
                    continue
                text = ctypes.create_string_buffer(32)
                if getattr(library, function)(text, len(text), handle) == 0:
                    return pci_address(text.value.decode("ascii", "replace"))
        return None

    return address


def loaded_library(stem: str) -> tuple[str, ...]:
    """Return paths of this process's loaded libraries with that name. Wheels use names that no loader finds."""
    if sys.platform != "linux":
        return ()
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        paths = (line.split(None, 5)[-1].strip() for line in lines)
        return tuple(dict.fromkeys(path for path in paths if f"/{stem}.so" in path))
    return ()


def _describe_card(torch: Any, position: int, count: int, addresses: Addresses) -> DetectedDevice:
    facts = torch.cuda.get_device_properties(position) if hasattr(torch.cuda, "get_device_properties") else None
    name = getattr(facts, "name", None) or torch.cuda.get_device_name(position)
    candidates = {"pci": _address_of(facts) or addresses(position), "uuid": uuid_text(getattr(facts, "uuid", None))}
    identity = {key: value for key, value in candidates.items() if value}
    chip = getattr(facts, "gcnArchName", None) if getattr(getattr(torch, "version", None), "hip", None) else None
    return DetectedDevice(
        name=clean(name),
        kind="integrated" if getattr(facts, "is_integrated", False) else "gpu",
        hardware_id=hardware_id(identity),
        memory_bytes=size(getattr(facts, "total_memory", None)),
        memory_free_bytes=None,
        library="torch",
        position=position,
        count=count,
        identity=identity,
        architecture=clean(str(chip).split(":")[0]) if chip else _compute_capability(facts),
    )


def _address_of(facts: Any) -> str | None:
    """Return the PCI address from torch's device properties, which contain it since torch 2.14."""
    parts = [getattr(facts, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if not all(isinstance(part, int) for part in parts) or not any(parts):
        return None
    return f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0"


def _compute_capability(facts: Any) -> str | None:
    major, minor = getattr(facts, "major", None), getattr(facts, "minor", None)
    return f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else None


def _absence_reason(torch: Any) -> str:
    """Return why torch finds no card, from the exception of its initialization: no driver, an old one, no card."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, OSError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    except AttributeError:
        pass
    return "it lists no card"
