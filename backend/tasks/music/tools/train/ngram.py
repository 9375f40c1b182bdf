"""The yardstick: an n-gram with Witten-Bell interpolation (Bell, Cleary, Witten 1990) over the same tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from backend.tasks.music.tokens import VOCABULARY


class NGram:
    """`order` tokens of context."""

    def __init__(self, order: int) -> None:
        self.order = order
        self._counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._totals: dict[tuple[int, ...], int] = defaultdict(int)

    def learn(self, tune: Sequence[int]) -> None:
        """Counts a tune's tokens."""
        for at, token in enumerate(tune):
            for length in range(min(self.order, at) + 1):
                context = tuple(tune[at - length : at])
                self._counts[context][token] += 1
                self._totals[context] += 1

    def bits(self, tune: Sequence[int], at: int, order: int) -> float:
        """Bits of the token at a place of a tune, by at most so many tokens before it."""
        share = 1 / VOCABULARY
        for length in range(min(order, at) + 1):
            context = tuple(tune[at - length : at])
            total = self._totals.get(context, 0)
            if not total:
                break
            followers = self._counts[context]
            share = (followers.get(tune[at], 0) + len(followers) * share) / (total + len(followers))
        return -math.log2(share)
