"""Where a song model gets its room: in which numbers, and whether whole on the card or part after part.

Chosen by the memory that is free when it is loaded, and said in words with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backend.common.errors import OutOfMemory

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

# For what is computed, beside the weights: a fifth of them and not less than this; of smaller models as much again.
KEPT_BYTES = 1_000_000_000
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Weighed(Protocol):
    """A folder whose weights were counted: all, or those of one of its models."""

    @property
    def path(self) -> Path: ...
    @property
    def models(self) -> Mapping[str, Any]: ...
    def numbers(self, name: str | None = None) -> int: ...


@dataclass(frozen=True)
class Room:
    """`number` is the type of the weights. `in_turns`: each model is on the card only while it computes."""

    number: str
    in_turns: bool
    weight_bytes: int
    free_bytes: int | None

    @property
    def words(self) -> str:
        """What was chosen, and by which figures."""
        free = "" if self.free_bytes is None else f" of {self.free_bytes / 1e9:.1f} GB that were free"
        turns = ", each part on the card only for its turn" if self.in_turns else ""
        return f"{self.number}: {self.weight_bytes / 1e9:.1f} GB of weights{free}{turns}"


def choose_room(pipeline: Weighed, place: TorchPlace) -> Room:
    """The room for a model on a device. Raises OutOfMemory with the numbers."""
    free, numbers = place.ground.free_bytes(), pipeline.numbers()
    if place.is_processor:
        # Processors compute float32 everywhere; the shorter type only where that does not fit.
        for number in dict.fromkeys(("float32", place.ground.number, "bfloat16")):
            weights = numbers * _ITEM_BYTES[number]
            if free is None or with_work(weights) <= free:
                return Room(number, False, weights, free)
        raise _too_large(pipeline, place, with_work(numbers * 2), free or 0)
    number = place.ground.number
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
    """The weights, and the room for what is computed with them."""
    return weights + max(KEPT_BYTES, weights // 5) if weights > KEPT_BYTES else weights * 2


def _too_large(pipeline: Weighed, place: TorchPlace, needed: int, free: int) -> OutOfMemory:
    least = "" if place.is_processor or len(pipeline.models) == 1 else ", even with each part there only for its turn"
    return OutOfMemory(
        f"{pipeline.path.name} needs {needed / 1e9:.1f} GB on {place.id} at 16 bits{least}, and {free / 1e9:.1f} GB "
        "are free.",
        "Close what else uses that memory, unload other models, or choose a device with more, or a smaller model.",
    )
