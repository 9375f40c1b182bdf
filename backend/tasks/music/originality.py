"""Keeps a tune from repeating a long run of a tune it was trained on.

The table holds a 32-bit hash of every ninth run of seventeen intervals of the training tunes. Any run of 25 intervals
contains one of those, so none longer than 24 can be copied. From hashes of every ninth run no tune can be read: to go
on from one run to the next, nine notes would have to be guessed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.grid import Row
from backend.tasks.music.weights import DATA

RUN = 17
STRIDE = 9
LONGEST_COPY = RUN + STRIDE - 2
FACTOR = 0x9E3779B97F4A7C15
_ALL = np.ones(tokens.VOCABULARY, bool)


def pitches(row: Row) -> list[int]:
    """Those of a row, in order, as tokens; ties and rests left out."""
    return [event.token for event in row.events if tokens.PITCH <= event.token < tokens.TIE]


def run_hashes(tune: Sequence[int]) -> Iterator[int]:
    """Hashes of every ninth run of a training tune, given by its pitches in order."""
    steps = [after - before for before, after in zip(tune, tune[1:], strict=False)]
    for at in range(0, len(steps) - RUN + 1, STRIDE):
        yield int(_hash(_sum(steps[at : at + RUN - 1]), np.array([steps[at + RUN - 1]]))[0])


class CopyGuard:
    """`table` holds the hashes as sorted uint32."""

    def __init__(self, table: NDArray[np.uint32]) -> None:
        self._table = table

    @classmethod
    def read(cls, folder: Path = DATA) -> CopyGuard:
        """The one that belongs to the weights in a folder."""
        return cls(np.load(folder / "copied-runs.npy"))

    def allowed(self, row: Row) -> NDArray[np.bool_]:
        """Whether each token may come next without completing a run of the table; all may where none is left."""
        so_far = pitches(row)[-RUN:]
        if len(so_far) < RUN:
            return _ALL
        steps = [after - before for before, after in zip(so_far, so_far[1:], strict=False)]
        following = np.arange(tokens.PITCH, tokens.TIE) - so_far[-1]
        hashes = _hash(_sum(steps), following)
        places = np.minimum(np.searchsorted(self._table, hashes), len(self._table) - 1)
        copied = self._table[places] == hashes
        if not copied.any() or copied.all():
            return _ALL
        mask: NDArray[np.bool_] = _ALL.copy()
        mask[tokens.PITCH : tokens.TIE] = ~copied
        return mask


def _sum(steps: Sequence[int]) -> int:
    total = 0
    for step in steps:
        total = (total * 1_000_003 + step + 64) % 2**64
    return total


def _hash(total: int, last: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Of a run whose intervals but the last gave `total`."""
    with np.errstate(over="ignore"):
        mixed = np.uint64(total) * np.uint64(1_000_003) + (last + 64).astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(FACTOR)
    hashed: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return hashed
