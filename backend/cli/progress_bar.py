"""The progress of a job on a terminal as one line that moves; elsewhere as a new line now and then."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from backend.common.types import Progress

LINE_EVERY_S = 5.0
_BAR_WIDTH = 24
_WORDS = {  # of phases that nothing measures
    "wait": "waiting for another program that fetches the same model",
    "tool": "fetching the installer (uv, 24 MB)",
    "python": "looking for a Python that fits",
    "resolve": "looking up which versions fit together",
    "store": "writing all to the disk",
    "prove": "proving the devices",
}


class ProgressBar:
    """Draws into a stream; `close` leaves the line."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._moves = stream.isatty()
        self._said_s = clock()
        self._open = False

    def show(self, progress: Progress) -> None:
        """Draws the newest state."""
        now_s = self._clock()
        text = _text(progress)
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + text[:width].ljust(width))
            self._open = True
        elif now_s - self._said_s >= LINE_EVERY_S:
            self._stream.write(text + "\n")
            self._said_s = now_s
        self._stream.flush()

    def say(self, line: str) -> None:
        """Writes a line below what is drawn."""
        self.close()
        self._stream.write(f"{line}\n")

    def close(self) -> None:
        """Leaves the line."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False


def _text(progress: Progress) -> str:
    if progress.phase in _WORDS:
        return _WORDS[progress.phase]
    if progress.phase == "retry":
        return f"the line broke at {progress.done / 1e6:.1f} MB, trying again"
    scale, unit = (1e6, "MB") if progress.unit == "bytes" else (1, progress.unit)
    digits = 0 if unit in ("bars", "runs") else 1
    done = f"{progress.done / scale:.{digits}f}"
    if not progress.total:
        return f"{progress.phase} {done} {unit}" if progress.done else progress.phase
    filled = round(_BAR_WIDTH * progress.done / progress.total)
    bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
    text = f"{progress.phase:<8} [{bar}] {done} of {progress.total / scale:.{digits}f} {unit}"
    if progress.per_s:
        text += f"  {progress.per_s / scale:.1f} {unit}/s"
    if progress.eta_s is not None and progress.done < progress.total:
        text += f"  {progress.eta_s:.0f} s left"
    return text
