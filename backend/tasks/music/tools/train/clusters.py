"""Finds tunes that are settings of each other, so that none of the test set has a relative in training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

GRAM = 7  # intervals in a row
RELATED = 0.30  # share of the shorter tune's grams that both have
SAME = 0.80


@dataclass(frozen=True)
class Clusters:
    """`cluster[i]` numbers the cluster of tune i; `duplicates` are those too like one kept before."""

    cluster: tuple[int, ...]
    duplicates: frozenset[int]


def find_clusters(tunes: Sequence[Sequence[int]]) -> Clusters:
    """Takes the pitches of each tune, best settings first; intervals are compared, so key and octave do not matter."""
    grams = [_grams(tune) for tune in tunes]
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    parent = list(range(len(tunes)))
    duplicates: set[int] = set()

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for number, own in enumerate(grams):
        shared = Counter(other for gram in own for other in holders[gram])
        for other, count in shared.items():
            overlap = count / max(1, min(len(own), len(grams[other])))
            if overlap > RELATED:
                parent[root(number)] = root(other)
            if overlap > SAME and other not in duplicates:
                duplicates.add(number)
        for gram in own:
            holders[gram].append(number)
    return Clusters(tuple(root(number) for number in range(len(tunes))), frozenset(duplicates))


def _grams(tune: Sequence[int]) -> set[tuple[int, ...]]:
    steps = [after - before for before, after in zip(tune, tune[1:], strict=False)]
    return {tuple(steps[at : at + GRAM]) for at in range(len(steps) - GRAM + 1)}
