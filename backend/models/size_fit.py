"""Whether a model that is not on this machine yet would fit a device, estimated from the size of its file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from backend.common.byte_sizes import gb

Fit = Literal["yes", "partly", "no"]
# Beside the weights: KV cache at the default context, buffers and library. Measured models of 0.1 to 9 GB need less.
_SHARE, _FIXED_BYTES = 0.08, 600_000_000
_USABLE_SYSTEM_SHARE = 0.85  # the rest is for the system and other programs


@dataclass(frozen=True)
class MemoryPlace:
    """A device that reads the format of a model, and its memory. `is_card`: the memory is its own."""

    device: str
    memory_bytes: int
    is_card: bool


@dataclass(frozen=True)
class SizeFit:
    """Whether a model fits a device, with the arithmetic as a sentence."""

    device: str
    fits: Fit
    reason: str
    needed_bytes: int


def fits_of(size_bytes: int | None, places: Iterable[MemoryPlace]) -> list[SizeFit]:
    """Return the fit for each place; none if the size is unknown."""
    places = list(places)
    system = sum(place.memory_bytes for place in places if not place.is_card)
    return [] if size_bytes is None else [_fit(size_bytes, place, system) for place in places]


def best_fit(fits: Iterable[SizeFit]) -> SizeFit | None:
    """Return the most complete fit, the first of equal ones."""
    order: tuple[Fit, ...] = ("yes", "partly", "no")
    return min(fits, key=lambda fit: order.index(fit.fits), default=None)


def _fit(size_bytes: int, place: MemoryPlace, system_bytes: int) -> SizeFit:
    extra = round(size_bytes * _SHARE) + _FIXED_BYTES
    usable = place.memory_bytes if place.is_card else round(place.memory_bytes * _USABLE_SYSTEM_SHARE)
    needs = f"{gb(size_bytes)} of weights and about {gb(extra)} for context and buffers"
    if size_bytes + extra <= usable:
        return SizeFit(place.device, "yes", f"{needs}; {gb(usable)} usable.", size_bytes + extra)
    share = max(0, usable - extra) / size_bytes
    if place.is_card and share > 0 and size_bytes + extra <= usable + system_bytes * _USABLE_SYSTEM_SHARE:
        how = f"about {share:.0%} of its layers fit, the others run on the processor"
        return SizeFit(place.device, "partly", f"{needs}; {gb(usable)} usable: {how}.", size_bytes + extra)
    return SizeFit(place.device, "no", f"{needs}; only {gb(usable)} usable.", size_bytes + extra)
