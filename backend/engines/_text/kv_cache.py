"""A KV cache with one row per sequence in arrays of fixed size, for the models of transformers.

Each layer implements the interface that transformers' class `Cache` calls: `update` writes new keys and values at their
positions and returns those that attention reads. Positions are tensors on the device, so a step needs no data from the
host and can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Place:
    """The rows and positions that the current step writes, and the window that attention sees.

    `rows` (rows, 1) and `positions` (rows, tokens) index the arrays. The rows are `first` to `first + count`; `first`
    is None if only the device knows them. Attention sees `window` tokens of each row. `starts`: optional, the first
    position of the new tokens in each row, where the host knows it and the device should only do slicing.
    """

    first: int | None
    count: int
    window: int
    rows: Any
    positions: Any
    starts: list[int] | None = None


class Layer:
    """Keys and values of one layer: arrays (rows, heads, tokens, size), allocated at the first use."""

    is_sliding = False
    is_compileable = True
    is_initialized = True

    def __init__(self, rows: int, context_tokens: int) -> None:
        self.shape = (rows, context_tokens)
        self.place: Place | None = None
        self.arrays: tuple[Any, Any] | None = None

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values (rows, heads, tokens, size); return those of the rows within the window."""
        if self.arrays is None:
            self.arrays = (self._zeros(keys), self._zeros(values))
        assert self.place is not None, "the model sets the place before each pass"
        return self._put(self.arrays[0], keys, self.place), self._put(self.arrays[1], values, self.place)

    def get_seq_length(self) -> int:
        """Return 0. Models only ask when positions are not passed, and they always are."""
        return 0

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return the number of tokens that attention sees, and the index of the first one."""
        return (self.place.window if self.place else self.shape[1]), 0

    def get_max_length(self) -> int:
        """Return the capacity of a row in tokens."""
        return self.shape[1]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row to another row."""
        for array in self.arrays or ():
            array[target, :, :length].copy_(array[source, :, :length])

    def _zeros(self, like: Any) -> Any:
        rows, tokens = self.shape
        return like.new_zeros((rows, like.shape[1], tokens, like.shape[3]))

    @staticmethod
    def _put(array: Any, new: Any, place: Place) -> Any:
        if place.starts is None:
            array[place.rows, :, place.positions] = new.transpose(1, 2)
        else:
            for row, start in enumerate(place.starts, place.first or 0):
                array[row, :, start : start + new.shape[2]].copy_(new[row - (place.first or 0)])
        if place.first is None:
            return array[:, :, : place.window].index_select(0, place.rows[:, 0])
        return array[place.first : place.first + place.count, :, : place.window]
