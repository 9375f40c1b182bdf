"""The training data (the .npz of dataset.py) as tensors on one device, and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.tasks.music import tokens
from backend.tasks.music.tools.train.dataset import SPLITS

LENGTH_MAX = 768


class Batches:
    """The tunes and their batches. `split[i]`, `form[i]`, `mode[i]`, `length[i]`, `made[i]` describe tune i."""

    def __init__(self, path: Path, device: str) -> None:
        data = np.load(path)
        start = data["start"]
        self.length: NDArray[np.int64] = np.minimum(np.diff(start), LENGTH_MAX)
        self.split, self.form, self.mode, self.made = data["split"], data["form"], data["mode"], data["made"]
        self.device = device
        width = int(self.length.max())
        ids, kinds, sides = (
            data["ids"],
            data["kinds"],
            data["sides"],
        )  # each lookup in `data` decompresses the complete array
        # The last axis is the token id, its kind, then the side ids.
        table = np.zeros((len(self.length), width, 2 + sides.shape[1]), np.int16)
        for number, length in enumerate(self.length):
            at = slice(start[number], start[number] + length)
            table[number, :length, 0] = ids[at]
            table[number, :length, 1] = kinds[at]
            table[number, :length, 2:] = sides[at]
        self._table = torch.from_numpy(table).to(device)

    def select(self, split: str, made: bool = False) -> NDArray[np.int64]:
        """Return the indexes of the tunes of a split: the original ones, or those converted to another mode."""
        return np.flatnonzero((self.split == SPLITS.index(split)) & (self.made == made))

    def batch(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ids, sides, targets and kinds, padded to the longest tune, rounded up to a multiple of 32."""
        width = min(-(-int(self.length[numbers].max()) // 32) * 32, self._table.shape[1])
        rows = self._table[torch.from_numpy(numbers).to(self.device), :width].long()
        ids, kinds, sides = rows[..., 0], rows[..., 1], rows[..., 2:]
        targets = torch.cat((ids[:, 1:], torch.zeros_like(ids[:, :1])), dim=1)
        return ids, sides, targets, kinds

    def epoch(self, numbers: NDArray[np.int64], size: int, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield batches of tunes of similar length, in random order."""
        order = random.permutation(numbers)
        pools = [order[at : at + 16 * size] for at in range(0, len(order), 16 * size)]
        batches = []
        for pool in pools:
            pool = pool[np.argsort(self.length[pool], kind="stable")]
            batches += [pool[at : at + size] for at in range(0, len(pool), size)]
        for number in random.permutation(len(batches)):
            yield batches[number]


def count_notes(targets: Tensor) -> Tensor:
    """Return the number of notes among the targets: pitches, without ties and rests."""
    return ((targets >= tokens.PITCH) & (targets < tokens.TIE)).sum()
