"""What the sampler asks of a model, whichever library computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Decoder(Protocol):
    """A decoder with its own memory of the tokens so far, one row for each tune that is composed at the same time."""

    def start(self, batch: int, tokens: int) -> None:
        """Forgets everything and makes room for `batch` rows of at most `tokens` tokens."""
        ...

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Takes the next token of each row, `ids` [batch], and its side ids, `sides` [batch, SIDES].

        Returns the logits of the token after it, [batch, vocabulary] float32.
        """
        ...


class RowByRow:
    """A Decoder made of decoders of one row each, for devices whose programs take but one."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        self._make = make
        self._rows: list[Decoder] = []

    def start(self, batch: int, tokens: int) -> None:
        """Forgets everything and makes room for `batch` rows of at most `tokens` tokens."""
        self._rows += [self._make() for _ in range(batch - len(self._rows))]
        for row in self._rows[:batch]:
            row.start(1, tokens)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Logits [batch, vocabulary] float32 of the token after `ids` [batch]."""
        places = range(len(ids))
        return np.concatenate([self._rows[at].step(ids[at : at + 1], sides[at : at + 1]) for at in places])
