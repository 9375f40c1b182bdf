"""Stop texts in a stream of pieces: nothing of a stop is ever shown, and what only began like one is shown in the end.

llama.cpp has this too, but keeps back for good what looks like the beginning of a stop when the text ends there.
"""

from __future__ import annotations

from collections.abc import Iterable


class Stops:
    """Takes pieces, gives what may be shown. `found` once a stop was met."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """The text that can be shown now that this piece came."""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        # A stop that begins at `shown` may still be completed by the next piece.
        shown = min((self._beginning(text, stop) for stop in self._stops), default=len(text))
        self._held = text[shown:]
        return text[:shown]

    def rest(self) -> str:
        """What was held back, when nothing follows any more."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        """Where the longest end of `text` begins that is a beginning of `stop`."""
        first = max(0, len(text) - len(stop) + 1)
        return next((place for place in range(first, len(text)) if stop.startswith(text[place:])), len(text))
