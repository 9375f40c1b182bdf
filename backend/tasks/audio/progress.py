"""Progress events, phase times and the result of a job that produces audio."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.common.engine_api import Emit


class Cancelled(Exception):
    """The job was cancelled: the event callback returned True."""


@dataclass(frozen=True)
class RenderResult:
    """The result of an audio job. `complete` is False after a cancel. `phases` maps each phase to its seconds."""

    counts: dict[str, int]
    complete: bool
    audio_s: float | None
    phases: dict[str, float]
    chosen: Mapping[str, object]

    @property
    def finish_reason(self) -> Literal["stop", "cancelled"]:
        """The finish reason for the receipt."""
        return "stop" if self.complete else "cancelled"


class ProgressReporter:
    """Emits progress events at most every `interval_s` seconds, and measures the duration of each phase."""

    def __init__(self, emit: Emit, interval_s: float) -> None:
        self._emit = emit
        self._interval_s = interval_s
        self._reported_at = 0.0
        self.phases: dict[str, float] = {}

    def progress(self, phase: str, done: float, total: float, unit: str) -> bool:
        """Emit progress; the first and last event are never skipped. Returns True if the job should stop."""
        now = time.perf_counter()
        if 0 < done < total and now - self._reported_at < self._interval_s:
            return self._emit("poll", {})
        self._reported_at = now
        return self._emit("progress", {"phase": phase, "done": done, "total": total, "unit": unit})

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase, also if an exception ends it. Adds up the times of a phase that runs more than once."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - started
