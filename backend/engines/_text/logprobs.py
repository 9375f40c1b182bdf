"""Log probabilities are sent with the text they belong to; those of text that a stop sequence cut off are dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from backend.common.engine_api import TokenLogprob, TokenProbability

_LOWEST = -9999.0  # OpenAI's value for an impossible token; JSON has no minus infinity


class Logprobs:
    """Collects tokens as llama.cpp's server reports them; returns those that start within the text shown so far.

    Of a character of several tokens it reports only the last one.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # with the byte offset of each token in the text
        self._taken_bytes = 0
        self._shown_bytes = 0

    def take(self, tokens: Iterable[TokenLogprob]) -> None:
        """Add generated tokens."""
        for token in tokens:
            likeliest = [_shape(other) for other in token.get("top_logprobs", ())[: self._alternatives]]
            self._waiting.append((self._taken_bytes, {**_shape(token), "top_logprobs": likeliest}))
            self._taken_bytes += len(token["bytes"])

    def of(self, text: str) -> list[TokenLogprob]:
        """Return the log probabilities of the text that is shown next."""
        self._shown_bytes += len(text.encode())
        listed = []
        while self._waiting and self._waiting[0][0] < self._shown_bytes:
            listed.append(self._waiting.popleft()[1])
        return listed


def _shape(token: TokenProbability) -> TokenProbability:
    logprob = token["logprob"]
    return {
        "id": token["id"],
        "token": token["token"],
        "bytes": token["bytes"],
        "logprob": _LOWEST if logprob is None else max(logprob, _LOWEST),
    }
