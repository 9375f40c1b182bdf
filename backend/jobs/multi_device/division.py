"""Division of a job on several devices: how many of its variations each device makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ShareSpec:
    """Consecutive variations, counted from 0, and the device that makes them unless it fails."""

    device: str
    first: int
    count: int

    @property
    def numbers(self) -> list[int]:
        """The variations, counted from 1."""
        return list(range(self.first + 1, self.first + self.count + 1))

    @property
    def label(self) -> str:
        """The share as sentences show it."""
        last = f" to {self.first + self.count}" if self.count > 1 else ""
        return f"{self.first + 1}{last} on {self.device}"


def divide(variations: int, devices: Sequence[str], speeds: Sequence[float | None]) -> list[ShareSpec]:
    """Return shares in the order of the devices: by their measured speeds if all are known, else equal ones.

    The method of largest remainders (Hamilton) makes the shares add up. A slow device may get no share.
    """
    weights = [speed or 0.0 for speed in speeds] if all(speeds) else [1.0] * len(devices)
    exact = [variations * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(devices)), key=lambda number: counts[number] - exact[number])
    for number in by_rest[: variations - sum(counts)]:
        counts[number] += 1
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    return [ShareSpec(*share) for share in zip(devices, firsts, counts, strict=True) if share[2]]
