"""Which environment variable hides which card from which libraries, in words.

Such variables change what a library lists and how it numbers it; ids here come from the bus and never change. A number
in them counts the library's own list, so it is said which card is meant only where that is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backend.common.types import Hardware

_GPUS = ("gpu", "integrated")


@dataclass(frozen=True)
class Variable:
    """One variable: whose cards it concerns, and which libraries heed it."""

    name: str
    vendor: str | None  # None: any vendor's
    libraries: str
    picks: Callable[[str, list[Hardware]], set[str] | None]  # the ids that stay visible, None where that is unsure


def _by_list(value: str, cards: list[Hardware]) -> set[str] | None:
    """Numbers and beginnings of UUIDs. As in CUDA's rules, what follows the first wrong entry is ignored."""
    visible: set[str] = set()
    certain = len({card.name for card in cards}) <= 1  # the order among different cards is the library's own
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdigit():
            if int(entry) >= len(cards):
                break
            if not certain:
                return None
            visible.add(cards[int(entry)].id)
        elif chosen := [
            card.id for card in cards if entry and card.uuid and card.uuid.lower().startswith(entry.lower())
        ]:
            visible.update(chosen)
        else:
            break
    return visible


def _by_bus_order(value: str, cards: list[Hardware]) -> set[str] | None:
    """The same where the library's order is the bus's: ROCm, Level Zero."""
    alike = [Hardware(card.id, "", None, card.kind, uuid=card.uuid) for card in cards]
    return _by_list(re.sub(r"\.\d+", "", value), alike)


def _unsure(value: str, cards: list[Hardware]) -> set[str] | None:
    return set() if value.strip() in ("", "-1") else None


def _by_ids(value: str, cards: list[Hardware]) -> set[str] | None:
    """`10de:2684` with an exclamation mark hides every other card; without, it only comes first."""
    if not value.endswith("!"):
        return {card.id for card in cards}
    return {card.id for card in cards if card.pci_ids == value[:-1].lower()}


def _container_list(value: str, cards: list[Hardware]) -> set[str] | None:
    """Numbers here count the machine's cards, of which a container sees its own alone: they tell it nothing."""
    return set() if value in ("none", "void") else {card.id for card in cards}


VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", "NVIDIA", "CUDA", _by_list),
    Variable("NVIDIA_VISIBLE_DEVICES", "NVIDIA", "this container", _container_list),
    Variable("CUDA_VISIBLE_DEVICES", "AMD", "HIP, which heeds CUDA's variable too", _by_bus_order),
    Variable("HIP_VISIBLE_DEVICES", "AMD", "HIP", _by_bus_order),
    Variable("ROCR_VISIBLE_DEVICES", "AMD", "ROCm", _by_bus_order),
    Variable("GPU_DEVICE_ORDINAL", "AMD", "HIP and OpenCL", _by_bus_order),
    Variable("ZE_AFFINITY_MASK", "Intel", "Level Zero (torch's XPU, OpenVINO)", _by_bus_order),
    Variable("ONEAPI_DEVICE_SELECTOR", "Intel", "SYCL (torch's XPU)", _unsure),
    Variable("GGML_VK_VISIBLE_DEVICES", None, "llama.cpp's Vulkan", _unsure),
    Variable("MESA_VK_DEVICE_SELECT", None, "Mesa's Vulkan", _by_ids),
    Variable("VK_DRIVER_FILES", None, "Vulkan", lambda value, cards: None),
    Variable("VK_ICD_FILENAMES", None, "Vulkan", lambda value, cards: None),
    Variable("VK_LOADER_DRIVERS_SELECT", None, "Vulkan", lambda value, cards: None),
    Variable("VK_LOADER_DRIVERS_DISABLE", None, "Vulkan", lambda value, cards: None),
    Variable("DML_VISIBLE_DEVICES", None, "torch-directml", _unsure),
)


def hidden_by(hardware: Iterable[Hardware], environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Sentences for each card that a variable hides or may hide, by the card's id."""
    gpus = sorted((item for item in hardware if item.kind in _GPUS), key=lambda item: item.id)
    said: dict[str, list[str]] = {}
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
            said.setdefault(card.id, []).append(sentence)
    return said


def _short(value: str) -> str:
    """A value as it stands, quoted where it is empty or has spaces, and not endless."""
    text = value if len(value) <= 80 else value[:77] + "…"
    return text if text and not re.search(r"\s", text) else repr(text)
