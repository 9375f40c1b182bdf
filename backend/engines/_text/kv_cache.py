"""Keys and values of several texts in arrays of a fixed size, for the models of transformers.

Each layer gets what the class `Cache` of transformers calls: `update` puts the new ones at their places and gives what
attention looks at. Places are tensors on the device, so a step needs nothing of the host and could be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Place:
    """Where the present step writes, and what it sees.

    `rows` (rows, 1) and `positions` (rows, tokens) are places in the arrays. The rows are `first` to `first + count`;
    with `first` None only the device knows which. Attention sees `window` tokens of them. `starts` are where each
    row's new tokens begin, known to the host alone where the device is to be asked for nothing but slices.
    """

    first: int | None
    count: int
    window: int
    rows: Any
    positions: Any
    starts: list[int] | None = None


class Layer:
    """One layer's keys and values: (rows, heads, tokens, size), made at the first use."""

    is_sliding = False
    is_compileable = True
    is_initialized = True

    def __init__(self, rows: int, context_tokens: int) -> None:
        self.shape = (rows, context_tokens)
        self.place: Place | None = None
        self.arrays: tuple[Any, Any] | None = None

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Keeps the new keys and values (rows, heads, tokens, size); gives all that the rows have in the window."""
        if self.arrays is None:
            self.arrays = (self._zeros(keys), self._zeros(values))
        assert self.place is not None, "a step says where it is"
        return self._put(self.arrays[0], keys, self.place), self._put(self.arrays[1], values, self.place)

    def get_seq_length(self) -> int:
        """Models ask where positions are not told, which they always are."""
        return 0

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """How many tokens attention sees, and where they begin."""
        return (self.place.window if self.place else self.shape[1]), 0

    def get_max_length(self) -> int:
        """Tokens that a row holds."""
        return self.shape[1]

    def move(self, source: int, target: int, length: int) -> None:
        """Copies what a row holds to another."""
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
