"""Cards that answer to `torch.cuda`, of either maker: listed with their identity, and found again by it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.devices import DeviceAbsent
from backend.devices._mechanisms.identity import chosen, clean, hardware_id, pci_address, size, uuid_text
from backend.devices._mechanisms.torch import TorchAccess, device_named, short_number

# Gives the PCI address of a card by its place; the C libraries of both makers have such a function.
Addresses = Callable[[int], "str | None"]


def list_cards(torch: Any, addresses: Addresses) -> list[DetectedDevice]:
    """All cards of `torch.cuda`. Raises Absent with the library's own reason where there is none."""
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if count < 1:
        raise DeviceAbsent(_why_none(torch))
    return [_found(torch, position, count, addresses) for position in range(count)]


def take_card(torch: Any, found: DetectedDevice, addresses: Addresses) -> TorchAccess:
    """A place on the card that was listed. Raises Absent where it is gone."""
    place = chosen(found, list_cards(torch, addresses)).position
    cuda = torch.cuda
    return TorchAccess(
        torch,
        device_named(torch, "cuda", place),
        "cuda",
        lambda: cuda.synchronize(place) if hasattr(cuda, "synchronize") else None,
        counter(cuda, "memory_allocated", place),
        lambda: size(cuda.mem_get_info(place)[0]) if hasattr(cuda, "mem_get_info") else None,
        short_number(cuda),
        records=hasattr(cuda, "CUDAGraph"),
    )


def counter(module: Any, name: str, *arguments: Any) -> Callable[[], int] | None:
    """The allocator's count of bytes in use, where this version has it."""
    count = getattr(module, name, None)
    return None if count is None else lambda: int(count(*arguments))


def driver_addresses(names: tuple[str, ...], function: str, by_ordinal: bool) -> Addresses:
    """Asks the maker's C library, which torch has loaded. `by_ordinal`: it takes a place, else a driver's handle."""

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
    """Paths of the libraries of that name in this process: wheels bring them under names that no loader finds."""
    if sys.platform != "linux":
        return ()
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        paths = (line.split(None, 5)[-1].strip() for line in lines)
        return tuple(dict.fromkeys(path for path in paths if f"/{stem}.so" in path))
    return ()


def _found(torch: Any, position: int, count: int, addresses: Addresses) -> DetectedDevice:
    facts = torch.cuda.get_device_properties(position) if hasattr(torch.cuda, "get_device_properties") else None
    name = getattr(facts, "name", None) or torch.cuda.get_device_name(position)
    identity = {"pci": _address_of(facts) or addresses(position), "uuid": uuid_text(getattr(facts, "uuid", None))}
    known = {key: value for key, value in identity.items() if value}
    chip = getattr(facts, "gcnArchName", None) if getattr(getattr(torch, "version", None), "hip", None) else None
    return DetectedDevice(
        name=clean(name),
        kind="integrated" if getattr(facts, "is_integrated", False) else "gpu",
        hardware_id=hardware_id(known),
        memory_bytes=size(getattr(facts, "total_memory", None)),
        memory_free_bytes=None,
        library="torch",
        position=position,
        count=count,
        identity=known,
        architecture=clean(str(chip).split(":")[0]) if chip else _compute_capability(facts),
    )


def _address_of(facts: Any) -> str | None:
    """From torch's own properties, which have it since 2.14."""
    parts = [getattr(facts, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if not all(isinstance(part, int) for part in parts) or not any(parts):
        return None
    return f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0"


def _compute_capability(facts: Any) -> str | None:
    major, minor = getattr(facts, "major", None), getattr(facts, "minor", None)
    return f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else None


def _why_none(torch: Any) -> str:
    """What the library says when it is asked to start: no driver, one too old, no card."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, OSError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    except AttributeError:
        pass
    return "it lists no card"
