"""Sampling numbers at the edge of floating point: one rule for all engines, tunes and songs.

Samplers compute in float32, where 1e-300 is 0 and 1 / 1e-38 overflows. A temperature or a share of probability that is
too small for them has the meaning of the limit: only the likeliest token. Other numbers have ranges that float32 holds.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

MIN_TEMPERATURE = 1e-3
MIN_TOP_P = 1e-6
MIN_REPETITION_PENALTY = 0.01


def limit_temperature(value: float) -> float:
    """Return the temperature, 0 for one that is too small for samplers."""
    return 0.0 if value < MIN_TEMPERATURE else value


def limit_share(value: float) -> float:
    """Return the share of probability, at least one that samplers can hold."""
    return max(value, MIN_TOP_P)


Temperature = Annotated[float, AfterValidator(limit_temperature)]
Share = Annotated[float, AfterValidator(limit_share)]
