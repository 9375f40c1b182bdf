"""One progress for a job on several devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from backend.common.types import Progress

LOADING = "load"  # counted in bytes, from which the load of other workers cannot be estimated


class CombinedProgress:
    """Adds up the progress of the shares. The phase shown is that of the slowest share."""

    def __init__(self, counts: Sequence[int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`counts` are the variations of each share."""
        self._counts = counts
        self._clock = clock
        self._phase_order = [LOADING]  # then the other phases, as they first appear
        self._started_at: dict[str, float] = {}  # by phase
        self._latest: list[dict[str, Progress]] = [{} for _ in counts]  # of each share, by phase
        self._current_phase: list[str | None] = [None] * len(counts)
        self._completed: set[int] = set()

    def update(self, share: int, progress: Progress) -> Progress:
        """Return the progress of the job after a share reported its own."""
        if progress.phase not in self._phase_order:
            self._phase_order.append(progress.phase)
        self._started_at.setdefault(progress.phase, self._clock())
        self._latest[share][progress.phase] = progress
        self._current_phase[share] = progress.phase
        self._completed.discard(share)
        return self._sum()

    def complete(self, share: int) -> None:
        """Note that a share is complete."""
        self._completed.add(share)

    def reset(self, share: int) -> None:
        """Drop the progress of a share that restarts on another device."""
        self._latest[share], self._current_phase[share] = {}, None

    def _sum(self) -> Progress:
        phases = [phase for share, phase in enumerate(self._current_phase) if phase and share not in self._completed]
        phase = min(phases, key=self._phase_order.index)
        reported = {share: latest[phase] for share, latest in enumerate(self._latest) if phase in latest}
        done = sum(
            progress.done if self._is_in(share, phase) else progress.total or progress.done
            for share, progress in reported.items()
        )
        total = sum(progress.total or progress.done for progress in reported.values())
        if phase != LOADING:
            per_variation = total / sum(self._counts[share] for share in reported)
            total += sum(
                per_variation * count for share, count in enumerate(self._counts) if self._current_phase[share] is None
            )
        spent_s = self._clock() - self._started_at[phase]
        eta_s = spent_s / done * (total - done) if done and total else None
        return Progress(phase, round(done, 2), round(total, 2), next(iter(reported.values())).unit, eta_s)

    def _is_in(self, share: int, phase: str) -> bool:
        """Return whether a share is still in that phase."""
        return share not in self._completed and self._current_phase[share] == phase
