"""The recommended text model for the memory of a machine, from the memory classes in text_models.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from backend.common.byte_sizes import gb
from backend.models.entries import Entry
from backend.models.size_fit import MemoryPlace, SizeFit, best_fit, fits_of

_CLASS = re.compile(r"(cpu|gpu)-(\d+)gb")
_NOMINAL_SHARE = 0.93  # a card or a machine of N GiB reports a little less
TYPICAL_BYTES_PER_S = 100e6 / 8  # a connection of 100 Mbit/s


@dataclass(frozen=True)
class Recommendation:
    """A model for a machine. `download_s`: duration of its download at 100 Mbit/s."""

    entry: Entry
    memory_class: str
    reason: str
    bytes: int | None
    download_s: float | None
    fit: SizeFit | None


def recommend(entries: Iterable[Entry], places: Iterable[MemoryPlace]) -> Recommendation | None:
    """Return the model for the card with the most memory, else for the system memory; None if all is too small.

    `places`: the devices that can run a text model of the catalogue.
    """
    by_class = {name: entry for entry in entries for name in entry.facts.get("recommended", [])}
    ordered = sorted(places, key=lambda place: (place.is_card, place.memory_bytes), reverse=True)
    for place in ordered:
        memory_class = _class_of(place, by_class)
        if memory_class is not None:
            entry = by_class[memory_class]
            size = entry.size_bytes
            where = f"the card's {gb(place.memory_bytes)}" if place.is_card else f"{gb(place.memory_bytes)} of memory"
            return Recommendation(
                entry,
                memory_class,
                f"Chosen for {where} ({place.device}). {entry.facts['good_at']}",
                size,
                None if size is None else round(size / TYPICAL_BYTES_PER_S),
                best_fit(fits_of(size, [place])),
            )
    return None


def _class_of(place: MemoryPlace, classes: Iterable[str]) -> str | None:
    """Return the largest memory class that a place reaches."""
    kind = "gpu" if place.is_card else "cpu"
    sizes = [int(match[2]) for name in classes if (match := _CLASS.fullmatch(name)) and match[1] == kind]
    reached = [size for size in sizes if place.memory_bytes >= size * (1 << 30) * _NOMINAL_SHARE]
    return f"{kind}-{max(reached)}gb" if reached else None
