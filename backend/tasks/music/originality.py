"""A guard against copying a long run of notes from a training tune.

The table contains a 32-bit hash of every ninth 17-gram of pitch intervals in the training tunes. Every run of 25
intervals contains one of these, so at most 24 intervals can be copied. The tunes cannot be reconstructed from the
table: the step from one hashed run to the next would mean guessing nine notes at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.tasks.music import tokens
from backend.tasks.music.grid import TuneGrid
from backend.tasks.music.weights import DATA

RUN = 17
STRIDE = 9
MAX_COPY = RUN + STRIDE - 2
FACTOR = 0x9E3779B97F4A7C15
_ALL = np.ones(tokens.VOCABULARY, bool)


def pitch_tokens(row: TuneGrid) -> list[int]:
    """Return the pitch tokens of a tune in order, without ties and rests."""
    return [event.token for event in row.events if tokens.PITCH <= event.token < tokens.TIE]


def run_hashes(tune: Sequence[int]) -> Iterator[int]:
    """Yield the hashes of every ninth run of a training tune, given its pitch tokens in order."""
    steps = [after - before for before, after in zip(tune, tune[1:], strict=False)]
    for start in range(0, len(steps) - RUN + 1, STRIDE):
        yield int(_hash(_rolling_hash(steps[start : start + RUN - 1]), np.array([steps[start + RUN - 1]]))[0])


class CopyGuard:
    """A filter for tokens that would complete a run of a training tune. `table` are the sorted uint32 hashes."""

    def __init__(self, table: NDArray[np.uint32]) -> None:
        self._table = table

    @classmethod
    def read(cls, folder: Path = DATA) -> CopyGuard:
        """Return the guard for the weights in a folder. Raises OSError."""
        return cls(np.load(folder / "copied-runs.npy"))

    def allowed_tokens(self, row: TuneGrid) -> NDArray[np.bool_]:
        """Return whether each token avoids completing a run of the table; all True if none would be left."""
        played = pitch_tokens(row)[-RUN:]
        if len(played) < RUN:
            return _ALL
        steps = [after - before for before, after in zip(played, played[1:], strict=False)]
        following = np.arange(tokens.PITCH, tokens.TIE) - played[-1]
        hashes = _hash(_rolling_hash(steps), following)
        indexes = np.minimum(np.searchsorted(self._table, hashes), len(self._table) - 1)
        is_copy = self._table[indexes] == hashes
        if not is_copy.any() or is_copy.all():
            return _ALL
        mask: NDArray[np.bool_] = _ALL.copy()
        mask[tokens.PITCH : tokens.TIE] = ~is_copy
        return mask


def _rolling_hash(steps: Sequence[int]) -> int:
    total = 0
    for step in steps:
        total = (total * 1_000_003 + step + 64) % 2**64
    return total


def _hash(total: int, last: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the hashes of runs: `total` is the rolling hash of all intervals but the last, `last` the candidates."""
    with np.errstate(over="ignore"):
        mixed = np.uint64(total) * np.uint64(1_000_003) + (last + 64).astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(FACTOR)
    hashed: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return hashed
