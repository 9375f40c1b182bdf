"""The progress of a job on a terminal, as one line that is redrawn; elsewhere as a new line every few seconds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from backend.common.types import Progress

LINE_INTERVAL_S = 5.0
_BAR_WIDTH = 24
_PHASES = {  # phases without a measured amount
    "wait": "waiting for another program that downloads the same model",
    "tool": "downloading the installer (uv, 24 MB)",
    "python": "looking for a suitable Python",
    "resolve": "resolving package versions",
    "store": "syncing files to the disk",
    "prove": "proving the devices",
}


class ProgressBar:
    """Draws into a stream. `close` ends the line that is drawn."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._redraws = stream.isatty()
        self._last_line_s = clock()
        self._is_open = False

    def show(self, progress: Progress) -> None:
        """Draw the newest state."""
        now_s = self._clock()
        text = _text(progress)
        if self._redraws:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + text[:width].ljust(width))
            self._is_open = True
        elif now_s - self._last_line_s >= LINE_INTERVAL_S:
            self._stream.write(text + "\n")
            self._last_line_s = now_s
        self._stream.flush()

    def print_line(self, line: str) -> None:
        """Write a line below the bar."""
        self.close()
        self._stream.write(f"{line}\n")

    def close(self) -> None:
        """End the line that is drawn, if any. May be called again."""
        if self._is_open:
            self._stream.write("\n")
            self._stream.flush()
            self._is_open = False


def _text(progress: Progress) -> str:
    if progress.phase in _PHASES:
        return _PHASES[progress.phase]
    if progress.phase == "retry":
        return f"connection lost at {progress.done / 1e6:.1f} MB, retrying"
    scale, unit = (1e6, "MB") if progress.unit == "bytes" else (1, progress.unit)
    digits = 0 if unit in ("bars", "runs") else 1
    done = f"{progress.done / scale:.{digits}f}"
    if not progress.total:
        return f"{progress.phase} {done} {unit}" if progress.done else progress.phase
    filled = round(_BAR_WIDTH * min(1.0, progress.done / progress.total))  # a total may be an estimate
    bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
    text = f"{progress.phase:<8} [{bar}] {done} of {progress.total / scale:.{digits}f} {unit}"
    if progress.per_s:
        text += f"  {progress.per_s / scale:.1f} {unit}/s"
    if progress.eta_s is not None and progress.done < progress.total:
        text += f"  {progress.eta_s:.0f} s left"
    return text
