"""A filter for stop sequences in streamed text.

No part of a stop sequence is returned. Text that only looked like the start of one is returned later. llama.cpp has
such a filter too, but it drops a partial match at the end of the text.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopFilter:
    """Takes streamed text and returns the part before the first stop sequence.

    `matched` is True once a stop sequence was found; discard all text that comes after that.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.matched = False

    def feed(self, piece: str) -> str:
        """Return the text that can no longer be part of a stop sequence, now that `piece` follows."""
        text = self._pending + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self.matched, self._pending = True, ""
            return text[: min(starts)]
        # The next piece may complete a stop sequence that starts at `safe_end`.
        safe_end = min((self._partial_match(text, stop) for stop in self._stops), default=len(text))
        self._pending = text[safe_end:]
        return text[:safe_end]

    def flush(self) -> str:
        """Return the pending text at the end of the stream."""
        text, self._pending = self._pending, ""
        return text

    @staticmethod
    def _partial_match(text: str, stop: str) -> int:
        """Return the start of the longest suffix of `text` that is a prefix of `stop`; `len(text)` if there is none."""
        first = max(0, len(text) - len(stop) + 1)
        return next((start for start in range(first, len(text)) if stop.startswith(text[start:])), len(text))
