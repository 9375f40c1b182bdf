"""Random seeds. The same seed gives the same result; variation n uses the seed plus n."""

from __future__ import annotations

SEEDS = 2**32 - 1  # valid seeds are 0 to SEEDS - 1


def offset_seed(seed: int, number: int) -> int:
    """Return seed + number, wrapping around to 0."""
    return (seed + number) % SEEDS
