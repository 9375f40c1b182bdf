"""Clustering of tunes that are variants of each other, so that no test tune has a variant in the training set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

GRAM = 7  # n of the n-grams of intervals
RELATED = 0.30  # shared n-grams, as a fraction of the shorter tune's
SAME = 0.80


@dataclass(frozen=True)
class Clusters:
    """The clusters. `cluster[i]` is the cluster id of tune i; `duplicates` are near copies of earlier tunes."""

    cluster: tuple[int, ...]
    duplicates: frozenset[int]


def find_clusters(tunes: Sequence[Sequence[int]]) -> Clusters:
    """Cluster tunes by their n-grams of intervals, which do not depend on key or octave.

    `tunes` are the pitches of each tune; the preferred variants come first.
    """
    grams = [_grams(tune) for tune in tunes]
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    parent = list(range(len(tunes)))
    duplicates: set[int] = set()

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for number, grams_of_tune in enumerate(grams):
        shared = Counter(other for gram in grams_of_tune for other in holders[gram])
        for other, count in shared.items():
            overlap = count / max(1, min(len(grams_of_tune), len(grams[other])))
            if overlap > RELATED:
                parent[root(number)] = root(other)
            if overlap > SAME and other not in duplicates:
                duplicates.add(number)
        for gram in grams_of_tune:
            holders[gram].append(number)
    return Clusters(tuple(root(number) for number in range(len(tunes))), frozenset(duplicates))


def _grams(tune: Sequence[int]) -> set[tuple[int, ...]]:
    steps = [after - before for before, after in zip(tune, tune[1:], strict=False)]
    return {tuple(steps[at : at + GRAM]) for at in range(len(steps) - GRAM + 1)}
