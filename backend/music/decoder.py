"""What the sampler asks of a model, whichever library computes it."""

from __future__ import annotations

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
