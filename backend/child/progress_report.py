"""Lines of JSON that a one-shot program writes for its parent, see `one_shot.py`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

REPORT_S = 0.2


class ProgressReport:
    """Writes lines to the parent; may be used from several threads."""

    def __init__(self, out: Any) -> None:
        """`out` is a text stream."""
        self._out = out
        self._lock = threading.Lock()
        self._phase = ""
        self._last_s = 0.0

    def send(self, line: Mapping[str, object]) -> None:
        """Write one JSON object as a line."""
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Report how far a phase is, in bytes. Lines that follow each other too fast are dropped, but not the last."""
        now_s = time.monotonic()
        if phase == self._phase and now_s - self._last_s < REPORT_S / 2 and done != total:
            return
        self._phase, self._last_s = phase, now_s
        self.send({"phase": phase, "done": done, "total": total})


class FileProgressReport(ProgressReport):
    """Reports one file as a part of the progress of several."""

    def __init__(self, report: ProgressReport, offset: int, total: int | None) -> None:
        """`offset` is the bytes of the files before this one, `total` those of all files."""
        self._report, self._offset, self._total = report, offset, total

    def send(self, line: Mapping[str, object]) -> None:
        """Write one JSON object as a line."""
        self._report.send(line)

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Report how far all files are; `total` of this file is ignored."""
        self._report.progress(phase, self._offset + done, self._total)
