"""A fake decoder: its logits are a fixed function of the token and its side ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.grid import SIDES


class FakeDecoder:
    """A fake decoder that prefers small intervals and is random otherwise."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self._tables = [
            random.normal(size=(size, tokens.VOCABULARY)).astype(np.float32) for size in (tokens.VOCABULARY, *SIDES)
        ]
        pitches = np.arange(len(tokens.PITCHES))
        self._tables[0][tokens.PITCH : tokens.TIE, tokens.PITCH : tokens.TIE] -= (
            np.abs(pitches[:, None] - pitches[None]) / 2
        )
        self.steps = 0

    def start(self, batch: int, tokens: int) -> None:
        """Do nothing: it has no KV cache."""

    def step(self, ids: NDArray[np.int64], sides: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the sum of the table entries."""
        self.steps += 1
        columns = [ids, *np.asarray(sides).T]
        total: Any = sum(table[column] for table, column in zip(self._tables, columns, strict=True))
        return np.asarray(total, np.float32)
