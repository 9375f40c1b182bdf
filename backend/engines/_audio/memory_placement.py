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


class SizedModel(Protocol):
    """A model folder whose weights were counted: in total, or for one of its models."""

    @property
    def path(self) -> Path: ...
    @property
    def models(self) -> Mapping[str, Any]: ...
    def parameter_count(self, name: str | None = None) -> int: ...


@dataclass(frozen=True)
class MemoryPlacement:
    """The chosen placement.

    `dtype` is the data type of the weights. `sequential_offload`: each part is on the card only while it runs.
    """

    dtype: str
    sequential_offload: bool
    weight_bytes: int
    free_bytes: int | None

    @property
    def description(self) -> str:
        """Describe the choice and its figures."""
        free = "" if self.free_bytes is None else f" of {self.free_bytes / 1e9:.1f} GB available"
        turns = ", each part on the card only while it runs" if self.sequential_offload else ""
        return f"{self.dtype}: {self.weight_bytes / 1e9:.1f} GB of weights{free}{turns}"


def choose_placement(pipeline: SizedModel, place: TorchPlace) -> MemoryPlacement:
    """Choose the placement of a model on a device. Raises OutOfMemory with the figures."""
    free, parameters = place.access.free_bytes(), pipeline.parameter_count()
    if place.is_processor:
        # CPUs compute float32 everywhere; a shorter type is used only if that does not fit.
        for dtype in dict.fromkeys(("float32", place.access.dtype, "bfloat16")):
            weights = parameters * _ITEM_BYTES[dtype]
            if free is None or with_activation_memory(weights) <= free:
                return MemoryPlacement(dtype, False, weights, free)
        raise _too_large(pipeline, place, with_activation_memory(parameters * 2), free or 0)
    dtype = place.access.dtype
    weights = parameters * _ITEM_BYTES[dtype]
    if free is None or with_activation_memory(weights) <= free:
        return MemoryPlacement(dtype, False, weights, free)
    if len(pipeline.models) == 1:
        raise _too_large(pipeline, place, with_activation_memory(weights), free)
    largest = max(pipeline.parameter_count(name) for name in pipeline.models) * _ITEM_BYTES[dtype]
    if with_activation_memory(largest) <= free:
        return MemoryPlacement(dtype, True, weights, free)
    raise _too_large(pipeline, place, with_activation_memory(largest), free)


def with_activation_memory(weights: int) -> int:
    """Return the size of weights plus the memory for computing with them."""
    return weights + max(KEPT_BYTES, weights // 5) if weights > KEPT_BYTES else weights * 2


def _too_large(pipeline: SizedModel, place: TorchPlace, needed: int, free: int) -> OutOfMemory:
    turns = "" if place.is_processor or len(pipeline.models) == 1 else ", even with one part at a time on the card"
    return needs_more_memory(pipeline.path.name, needed, free, f" on {place.id} at 16 bits{turns}")
