"""What a download tells its parent: one JSON object a line, `{phase, done, total}` a few times a second."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

REPORT_S = 0.2


class ProgressReport:
    """Sends lines to the parent."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._phase = ""
        self._last_s = 0.0

    def send(self, line: dict[str, Any]) -> None:
        """One JSON object."""
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """How far a phase is, in bytes; more than a few times a second is left out."""
        now_s = time.monotonic()
        if phase == self._phase and now_s - self._last_s < REPORT_S / 2 and done != total:
            return
        self._phase, self._last_s = phase, now_s
        self.send({"phase": phase, "done": done, "total": total})


class Share(ProgressReport):
    """The part that one of several files has in the progress of all."""

    def __init__(self, whole: ProgressReport, before: int, total: int | None) -> None:
        self._whole, self._before, self._total = whole, before, total

    def send(self, line: dict[str, Any]) -> None:
        """As it is."""
        self._whole.send(line)

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Counted with what came before."""
        self._whole.progress(phase, self._before + done, self._total)
