"""One progress for a job that several devices work on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from backend.common.types import Progress

LOADING = "load"  # its bytes say nothing of what other workers will load


class CombinedProgress:
    """Adds up what the shares tell of their phases: the phase shown is the one that the slowest of them is in."""

    def __init__(self, counts: Sequence[int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`counts` are the variations of each share."""
        self._counts = counts
        self._clock = clock
        self._order = [LOADING]  # and then the other phases as they were seen first
        self._began: dict[str, float] = {}
        self._told: list[dict[str, Progress]] = [{} for _ in counts]
        self._now: list[str | None] = [None] * len(counts)
        self._ended: set[int] = set()

    def tell(self, share: int, progress: Progress) -> Progress:
        """How far all are, after a share told how far it is."""
        if progress.phase not in self._order:
            self._order.append(progress.phase)
        self._began.setdefault(progress.phase, self._clock())
        self._told[share][progress.phase] = progress
        self._now[share] = progress.phase
        self._ended.discard(share)
        return self._sum()

    def end(self, share: int) -> None:
        """A share is complete."""
        self._ended.add(share)

    def forget(self, share: int) -> None:
        """A share begins anew on another device."""
        self._told[share], self._now[share] = {}, None

    def _sum(self) -> Progress:
        phases = [phase for number, phase in enumerate(self._now) if phase and number not in self._ended]
        phase = min(phases, key=self._order.index)
        known = {number: told[phase] for number, told in enumerate(self._told) if phase in told}
        done = sum(one.done if self._in(number, phase) else one.total or one.done for number, one in known.items())
        total = sum(one.total or one.done for one in known.values())
        if phase != LOADING:
            each = total / sum(self._counts[number] for number in known)
            total += sum(each * count for number, count in enumerate(self._counts) if self._now[number] is None)
        spent_s = self._clock() - self._began[phase]
        eta_s = spent_s / done * (total - done) if done and total else None
        return Progress(phase, round(done, 2), round(total, 2), next(iter(known.values())).unit, eta_s)

    def _in(self, share: int, phase: str) -> bool:
        """Whether a share is still in that phase."""
        return share not in self._ended and self._now[share] == phase
