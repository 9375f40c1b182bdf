"""Environment variables that hide cards from libraries, described in sentences.

Such variables change which cards a library lists and how it numbers them. Ids here are from the bus and never change. A
number in a variable refers to the library's list, so a card is only named if the match is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backend.common.types import Hardware

_GPUS = ("gpu", "integrated")


@dataclass(frozen=True)
class Variable:
    """One variable: the vendor of its cards, and the libraries that use it."""

    name: str
    vendor: str | None  # None: any vendor's
    libraries: str
    picks: Callable[[str, list[Hardware]], set[str] | None]  # returns the visible ids, None if uncertain


def _by_list(value: str, cards: list[Hardware]) -> set[str] | None:
    """Parse numbers, prefixes of UUIDs and MIG instances. As in CUDA, an invalid entry ends the list."""
    visible: set[str] = set()
    certain = len({card.name for card in cards}) <= 1  # the library decides the order of different cards
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdecimal():
            if int(entry) >= len(cards):
                break
            if not certain:
                return None
            visible.add(cards[int(entry)].id)
            continue
        uuid = entry.removeprefix("MIG-").partition("/")[0] if entry.startswith("MIG-GPU-") else entry
        chosen = [card.id for card in cards if uuid and card.uuid and card.uuid.lower().startswith(uuid.lower())]
        if entry.startswith("MIG-") and not chosen:
            return None  # an instance, whose UUID does not identify its card
        if len(chosen) != 1:
            break
        visible.update(chosen)
    return visible


def _by_cuda_list(value: str, cards: list[Hardware]) -> set[str] | None:
    """Parse CUDA's list, in which a repeated entry hides all cards."""
    entries = [part.strip() for part in value.split(",")]
    return set() if len(set(entries)) < len(entries) else _by_list(value, cards)


def _by_bus_order(value: str, cards: list[Hardware]) -> set[str] | None:
    """Parse a list whose numbers are in bus order: ROCm, Level Zero."""
    alike = [Hardware(card.id, "", None, card.kind, uuid=card.uuid) for card in cards]
    return _by_list(re.sub(r"\.\d+", "", value), alike)


def _only_none(value: str, cards: list[Hardware]) -> set[str] | None:
    return set() if value.strip() in ("", "-1") else None


def _by_ids(value: str, cards: list[Hardware]) -> set[str] | None:
    """Parse `10de:2684!`, which hides every other card. Without the exclamation mark it only changes the order."""
    if not value.endswith("!"):
        return {card.id for card in cards}
    return {card.id for card in cards if card.pci_ids == value[:-1].lower()}


def _container_list(value: str, cards: list[Hardware]) -> set[str] | None:
    """Parse a container's list. Its numbers refer to the host's cards, so only `none` and `void` are meaningful."""
    return set() if value in ("none", "void") else {card.id for card in cards}


VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", "NVIDIA", "CUDA", _by_cuda_list),
    Variable("NVIDIA_VISIBLE_DEVICES", "NVIDIA", "this container", _container_list),
    Variable("CUDA_VISIBLE_DEVICES", "AMD", "HIP, which also uses CUDA's variable", _by_bus_order),
    Variable("HIP_VISIBLE_DEVICES", "AMD", "HIP", _by_bus_order),
    Variable("ROCR_VISIBLE_DEVICES", "AMD", "ROCm", _by_bus_order),
    Variable("GPU_DEVICE_ORDINAL", "AMD", "HIP and OpenCL", _by_bus_order),
    Variable("ZE_AFFINITY_MASK", "Intel", "Level Zero (torch's XPU, OpenVINO)", _by_bus_order),
    Variable("ONEAPI_DEVICE_SELECTOR", "Intel", "SYCL (torch's XPU)", _only_none),
    Variable("GGML_VK_VISIBLE_DEVICES", None, "llama.cpp's Vulkan", _only_none),
    Variable("MESA_VK_DEVICE_SELECT", None, "Mesa's Vulkan", _by_ids),
    Variable("VK_DRIVER_FILES", None, "Vulkan", lambda value, cards: None),
    Variable("VK_ICD_FILENAMES", None, "Vulkan", lambda value, cards: None),
    Variable("VK_LOADER_DRIVERS_SELECT", None, "Vulkan", lambda value, cards: None),
    Variable("VK_LOADER_DRIVERS_DISABLE", None, "Vulkan", lambda value, cards: None),
    Variable("DML_VISIBLE_DEVICES", None, "torch-directml", _only_none),
)


def hidden_by(hardware: Iterable[Hardware], environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return sentences about the variables that hide or may hide a card, by the card's id."""
    gpus = sorted((item for item in hardware if item.kind in _GPUS), key=lambda item: item.id)
    sentences: dict[str, list[str]] = {}
    for variable in VARIABLES:
        value = environment.get(variable.name)
        cards = [card for card in gpus if variable.vendor in (None, card.vendor)]
        if value is None or not cards:
            continue
        visible = variable.picks(value, cards)
        for card in cards:
            if visible is None:
                sentence = f"{variable.name}={_short(value)} may hide it from {variable.libraries}."
            elif card.id in visible:
                continue
            else:
                sentence = f"{variable.name}={_short(value)} hides it from {variable.libraries}."
            sentences.setdefault(card.id, []).append(sentence)
    return sentences


def _short(value: str) -> str:
    """Return a value of at most 80 characters, quoted if it is empty or contains spaces."""
    text = value if len(value) <= 80 else value[:77] + "…"
    return text if text and not re.search(r"\s", text) else repr(text)
