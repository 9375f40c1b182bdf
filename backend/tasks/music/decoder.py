"""The interface of a model for the sampler, independent of the library that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Decoder(Protocol):
    """A stateful decoder with a KV cache: each row of the batch is one sequence."""

    def start(self, batch: int, tokens: int) -> None:
        """Reset the KV cache for `batch` sequences of at most `tokens` tokens."""
        ...

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Append a token to each sequence and return the logits of the next one, [batch, vocabulary] float32.

        `ids` [batch] are the tokens, `sides` [batch, SIDES] their side ids (see grid.py).
        """
        ...


class RowByRow:
    """A Decoder that runs one decoder per sequence, for devices whose compiled graphs have a batch size of one."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        self._make = make
        self._rows: list[Decoder] = []

    def start(self, batch: int, tokens: int) -> None:
        """Reset the KV caches for `batch` sequences of at most `tokens` tokens."""
        self._rows += [self._make() for _ in range(batch - len(self._rows))]
        for row in self._rows[:batch]:
            row.start(1, tokens)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Append a token to each sequence and return the logits of the next one, [batch, vocabulary] float32."""
        return np.concatenate(
            [self._rows[row].step(ids[row : row + 1], sides[row : row + 1]) for row in range(len(ids))]
        )
