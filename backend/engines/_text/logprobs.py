"""Log probabilities go out with the text they belong to, so those of what a stop cut off never do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

_LOWEST = -9999.0  # OpenAI's figure for a token that cannot come; JSON has no minus infinity


class Logprobs:
    """Takes tokens as llama.cpp's server reports them; gives those that begin within the text shown so far.

    Of a character of several tokens it reports the last one alone.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()  # with the byte of the text where each begins
        self._taken_bytes = 0
        self._shown_bytes = 0

    def take(self, tokens: Iterable[dict[str, Any]]) -> None:
        """Tokens that were generated."""
        for token in tokens:
            likeliest = [_shape(other) for other in token.get("top_logprobs", ())[: self._alternatives]]
            self._waiting.append((self._taken_bytes, {**_shape(token), "top_logprobs": likeliest}))
            self._taken_bytes += len(token["bytes"])

    def of(self, text: str) -> list[dict[str, Any]]:
        """Those of the text that is shown next."""
        self._shown_bytes += len(text.encode())
        found = []
        while self._waiting and self._waiting[0][0] < self._shown_bytes:
            found.append(self._waiting.popleft()[1])
        return found


def _shape(token: dict[str, Any]) -> dict[str, Any]:
    logprob = token["logprob"]
    return {
        "id": token["id"],
        "token": token["token"],
        "bytes": token["bytes"],
        "logprob": _LOWEST if logprob is None else max(logprob, _LOWEST),
    }
