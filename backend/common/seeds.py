"""Seeds: the same one gives the same result, and what makes several things counts on from it."""

from __future__ import annotations

import secrets

SEEDS = 2**32 - 1  # how many there are, from 0 on


def random_seed() -> int:
    """For a job that names none."""
    return secrets.randbelow(SEEDS)


def offset_seed(seed: int, number: int) -> int:
    """The seed that comes `number` after another; after the last one comes 0."""
    return (seed + number) % SEEDS
