"""What jobs that make sounds have in common: progress a few times a second, the time of each phase, what came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

# Called with an event's name and data; True means: stop now.
Emit = Callable[[str, dict[str, Any]], bool]


class Cancelled(Exception):
    """Whoever asked for the sound wants no more of it."""


@dataclass(frozen=True)
class RenderResult:
    """What came of it; `complete` is False where `emit` said stop. `phases` are seconds."""

    counts: dict[str, int]
    complete: bool
    audio_s: float | None
    phases: dict[str, float]
    chosen: dict[str, Any]

    @property
    def finish_reason(self) -> Literal["stop", "cancelled"]:
        """As receipts name it."""
        return "stop" if self.complete else "cancelled"


class ProgressReporter:
    """Tells how far a job is, at most each `gap_s` seconds, and keeps how long its phases took."""

    def __init__(self, emit: Emit, gap_s: float) -> None:
        self._emit = emit
        self._gap_s = gap_s
        self._told_at = 0.0
        self.phases: dict[str, float] = {}

    def progress(self, phase: str, done: float, total: float, unit: str) -> bool:
        """Whether to stop. The beginning and the end are always told."""
        now = time.perf_counter()
        if 0 < done < total and now - self._told_at < self._gap_s:
            return self._emit("poll", {})
        self._told_at = now
        return self._emit("progress", {"phase": phase, "done": done, "total": total, "unit": unit})

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Notes how long a phase took, also one that was left early; of one that comes again, all of it."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began
