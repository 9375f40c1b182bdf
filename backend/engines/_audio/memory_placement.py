"""How a song model is placed in memory: its data type, and whether all of it or one part at a time is on the card.

Chosen by the memory that is free when the model is loaded, and described with the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backend.common.errors import OutOfMemory
from backend.engines._memory_errors import needs_more_memory

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

# Working memory beyond the weights: a fifth of them and at least this; for smaller models as much as the weights.
KEPT_BYTES = 1_000_000_000
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Weighed(Protocol):
    """A model folder whose weights were counted: in total, or for one of its models."""

    @property
    def path(self) -> Path: ...
    @property
    def models(self) -> Mapping[str, Any]: ...
    def numbers(self, name: str | None = None) -> int: ...


@dataclass(frozen=True)
class Room:
    """The chosen placement.

    `number` is the data type of the weights. `in_turns`: each part is on the card only while it runs.
    """

    number: str
    in_turns: bool
    weight_bytes: int
    free_bytes: int | None

    @property
    def words(self) -> str:
        """Describe the choice and its figures."""
        free = "" if self.free_bytes is None else f" of {self.free_bytes / 1e9:.1f} GB available"
        turns = ", each part on the card only while it runs" if self.in_turns else ""
        return f"{self.number}: {self.weight_bytes / 1e9:.1f} GB of weights{free}{turns}"


def choose_room(pipeline: Weighed, place: TorchPlace) -> Room:
    """Choose the placement of a model on a device. Raises OutOfMemory with the figures."""
    free, numbers = place.access.free_bytes(), pipeline.numbers()
    if place.is_processor:
        # CPUs compute float32 everywhere; a shorter type is used only if that does not fit.
        for number in dict.fromkeys(("float32", place.access.dtype, "bfloat16")):
            weights = numbers * _ITEM_BYTES[number]
            if free is None or with_work(weights) <= free:
                return Room(number, False, weights, free)
        raise _too_large(pipeline, place, with_work(numbers * 2), free or 0)
    number = place.access.dtype
    weights = numbers * _ITEM_BYTES[number]
    if free is None or with_work(weights) <= free:
        return Room(number, False, weights, free)
    if len(pipeline.models) == 1:
        raise _too_large(pipeline, place, with_work(weights), free)
    largest = max(pipeline.numbers(name) for name in pipeline.models) * _ITEM_BYTES[number]
    if with_work(largest) <= free:
        return Room(number, True, weights, free)
    raise _too_large(pipeline, place, with_work(largest), free)


def with_work(weights: int) -> int:
    """Return the size of weights plus the memory for computing with them."""
    return weights + max(KEPT_BYTES, weights // 5) if weights > KEPT_BYTES else weights * 2


def _too_large(pipeline: Weighed, place: TorchPlace, needed: int, free: int) -> OutOfMemory:
    turns = "" if place.is_processor or len(pipeline.models) == 1 else ", even with one part at a time on the card"
    return needs_more_memory(pipeline.path.name, needed, free, f" on {place.id} at 16 bits{turns}")
