"""Escaping of control tokens in user text: `<|im_start|>` in a message must not start a new message.

Before rendering, a separator character is inserted into each control token in the messages. After rendering, the prompt
is split at the separator, and each segment is tokenized separately, so no segment contains a control token that a user
typed. Control tokens that the template writes are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_SEPARATORS = range(0xF0000, 0xF1000)  # a Unicode private use area, which no template tests for


class ControlTokens:
    """The control tokens of one model's vocabulary, as text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def escape(self, value: Any) -> tuple[Any, str]:
        """Return a copy of JSON data with every control token split by a separator, and that separator.

        Without control tokens, returns `value` itself and an empty separator.
        """
        texts = list(_texts(value))
        if self._pattern is None or not any(self._pattern.search(text) for text in texts):
            return value, ""
        separator = next(chr(code) for code in _SEPARATORS if not any(chr(code) in text for text in texts))
        return self._escape_value(value, separator), separator

    def split(self, text: str) -> list[str]:
        """Return the segments of a raw prompt, which no template renders."""
        return split_segments(*self.escape(text))

    def _escape_value(self, value: Any, separator: str) -> Any:
        if isinstance(value, str):
            assert self._pattern
            return self._pattern.sub(lambda token: token[0][0] + separator + token[0][1:], value)
        if isinstance(value, list):
            return [self._escape_value(item, separator) for item in value]
        if isinstance(value, dict):
            return {
                self._escape_value(key, separator): self._escape_value(item, separator) for key, item in value.items()
            }
        return value


def split_segments(text: str, separator: str) -> list[str]:
    """Return the non-empty segments between the separators. Without a separator, the text is one segment."""
    return [segment for segment in (text.split(separator) if separator else [text]) if segment]


def _texts(value: Any) -> Iterable[str]:
    """Yield every string in JSON data, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
