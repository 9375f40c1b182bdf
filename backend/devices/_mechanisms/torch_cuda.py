"""NVIDIA and AMD cards through `torch.cuda`: listed with their identity, and matched by it when opened."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import DetectedDevice, DeviceAbsent, TorchAccess
from backend.devices._mechanisms.card_list import describe_all
from backend.devices._mechanisms.identity import (
    free_size,
    hardware_id,
    is_instance,
    match_device,
    pci_address,
    size,
    uuid_text,
)
from backend.devices._mechanisms.torch import device_named, preferred_dtype

# Returns the PCI address of a card by its position. The C libraries of both vendors have such a function.
Addresses = Callable[[int], "str | None"]
_INSTANCE_NAME = re.compile(r"\bMIG\b")  # CUDA's name of an instance: "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
_listed: list[DetectedDevice] = []
_AMD_NAME = re.compile(r"\bAMD\b|\bATI\b|Radeon|Instinct|FirePro|\bgfx\d", re.IGNORECASE)


def list_cards(torch: Any, addresses: Addresses, vendor: str) -> list[DetectedDevice]:
    """List all cards of `torch.cuda`.

    `vendor` names a card that cannot be described, which is listed with the reason. Raises DeviceAbsent with the
    library's own reason if there is none, and what torch raises if it can describe none.
    """
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if count < 1:
        raise DeviceAbsent(_absence_reason(torch))
    cards = describe_all(
        lambda position: _describe_card(torch, position, count, addresses), count, vendor, "torch", addresses
    )
    _listed[:] = cards
    return cards


def cards_listed_before() -> list[DetectedDevice]:
    """Return the cards that `list_cards` returned last in this process."""
    return list(_listed)


def open_card(torch: Any, detected: DetectedDevice, listed: list[DetectedDevice]) -> TorchAccess:
    """Open a card. `listed`: the cards as this process lists them. Raises DeviceAbsent if it is gone."""
    position = match_device(detected, listed).position
    cuda = torch.cuda
    return TorchAccess(
        torch,
        device_named(torch, "cuda", position),
        "cuda",
        lambda: cuda.synchronize(position) if hasattr(cuda, "synchronize") else None,
        counter(cuda, "memory_allocated", position),
        lambda: free_size(cuda.mem_get_info(position)[0]) if hasattr(cuda, "mem_get_info") else None,
        preferred_dtype(cuda),
        can_record=hasattr(cuda, "CUDAGraph"),
    )


def only_vendor(cards: list[DetectedDevice], amd: bool) -> list[DetectedDevice]:
    """Return AMD's cards, or the others. A card that cannot be described belongs to the vendor of the rest."""
    described = [card for card in cards if card.fault is None]
    chosen = [card for card in described if is_amd(card) == amd]
    return [card for card in cards if card in chosen or (card.fault and chosen)]


def is_amd(card: DetectedDevice) -> bool:
    """Return whether a card of `torch.cuda` is AMD's, by its chip or its name."""
    return (card.architecture or "").startswith("gfx") or bool(_AMD_NAME.search(card.name))


def mark_instances(cards: list[DetectedDevice]) -> list[DetectedDevice]:
    """Mark cards at one address with different UUIDs as MIG instances: torch reports UUIDs without prefix."""
    marked = []
    for card in cards:
        address = card.identity.get("pci")
        uuids = {other.identity.get("uuid") for other in cards if address and other.identity.get("pci") == address}
        if len(uuids) > 1 and "uuid" in card.identity:
            identity = {**card.identity, "uuid": card.identity["uuid"].replace("GPU-", "MIG-")}
            card = replace(card, identity=identity, hardware_id=hardware_id(identity))
        marked.append(card)
    return marked


def add_selectors(cards: list[DetectedDevice]) -> list[DetectedDevice]:
    """Add the values of CUDA_VISIBLE_DEVICES that show each card: its UUID if no other has the same, its position.

    The driver refuses a UUID with the wrong prefix, and torch reports it without one, so the other prefix is tried too.
    """
    uuids = [card.identity.get("uuid") for card in cards]
    chosen = []
    for card in cards:
        uuid, place = card.identity.get("uuid"), str(card.position)
        if uuid is None or uuids.count(uuid) > 1:
            chosen.append(replace(card, selectors=[place]))
        elif is_instance(card.identity):
            chosen.append(replace(card, selectors=[uuid, place]))
        else:
            chosen.append(replace(card, selectors=[uuid, place, uuid.replace("GPU-", "MIG-")]))
    return chosen


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


def _describe_card(torch: Any, position: int, count: int, addresses: Addresses) -> DetectedDevice:
    facts = _facts(torch, position)
    name = clean_name(getattr(facts, "name", None) or torch.cuda.get_device_name(position))
    uuid = uuid_text(getattr(facts, "uuid", None), instance=bool(_INSTANCE_NAME.search(name)))
    candidates = {"pci": _address_of(facts) or addresses(position), "uuid": uuid}
    identity = {key: value for key, value in candidates.items() if value}
    return DetectedDevice(
        name=name,
        kind="integrated" if getattr(facts, "is_integrated", False) else "gpu",
        hardware_id=hardware_id(identity),
        memory_bytes=size(getattr(facts, "total_memory", None)),
        memory_free_bytes=None,
        library="torch",
        position=position,
        count=count,
        identity=identity,
        architecture=_chip(facts) or _compute_capability(facts),
    )


def _facts(torch: Any, position: int) -> Any:
    return torch.cuda.get_device_properties(position) if hasattr(torch.cuda, "get_device_properties") else None


def _chip(facts: Any) -> str | None:
    """Return AMD's name of the chip without features, such as gfx90a; None for other vendors' cards.

    A build for CUDA has the attribute too, with the card's name as value (torch/csrc/cuda/Module.cpp).
    """
    match = re.match(r"gfx[0-9a-f]+", str(getattr(facts, "gcnArchName", "")))
    return match[0] if match else None


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
