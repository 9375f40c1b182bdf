"""The baseline: an n-gram model with Witten-Bell interpolation (Bell, Cleary, Witten 1990) over the same tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from backend.tasks.music.tokens import VOCABULARY


class NGram:
    """An n-gram model with up to `order` tokens of context."""

    def __init__(self, order: int) -> None:
        self.order = order
        self._counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._totals: dict[tuple[int, ...], int] = defaultdict(int)

    def learn(self, tune: Sequence[int]) -> None:
        """Count the n-grams of a tune."""
        for position, token in enumerate(tune):
            for length in range(min(self.order, position) + 1):
                context = tuple(tune[position - length : position])
                self._counts[context][token] += 1
                self._totals[context] += 1

    def bits(self, tune: Sequence[int], position: int, order: int) -> float:
        """Return the bits of the token at a position of a tune, given at most `order` tokens before it."""
        probability = 1 / VOCABULARY
        for length in range(min(order, position) + 1):
            context = tuple(tune[position - length : position])
            total = self._totals.get(context, 0)
            if not total:
                break
            followers = self._counts[context]
            probability = (followers.get(tune[position], 0) + len(followers) * probability) / (total + len(followers))
        return -math.log2(probability)
