"""Keeps typed control marks text: `<|im_start|>` in a message must not begin a message.

A mark is cut in two by a character that occurs nowhere in the request; after rendering the text is split there, and
each piece is tokenized for itself, so that no piece holds a typed mark. What the template writes stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CUTS = range(0xF0000, 0xF1000)  # private use: no template looks for these


class Marks:
    """The control marks of one model's vocabulary, as they are written."""

    def __init__(self, marks: Iterable[str]) -> None:
        written = sorted({mark for mark in marks if len(mark) > 1}, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, written))) if written else None

    def cut(self, value: Any) -> tuple[Any, str]:
        """A copy of JSON data with every mark cut, and the cut; the cut is empty where nothing needed one."""
        texts = list(_texts(value))
        if self._marks is None or not any(self._marks.search(text) for text in texts):
            return value, ""
        cut = next(chr(code) for code in _CUTS if not any(chr(code) in text for text in texts))
        return self._cut(value, cut), cut

    def pieces(self, text: str) -> list[str]:
        """A text that nobody rendered, cut the same way."""
        changed, cut = self.cut(text)
        return split(changed, cut)

    def _cut(self, value: Any, cut: str) -> Any:
        if isinstance(value, str):
            assert self._marks
            return self._marks.sub(lambda mark: mark[0][0] + cut + mark[0][1:], value)
        if isinstance(value, list):
            return [self._cut(item, cut) for item in value]
        if isinstance(value, dict):
            return {self._cut(key, cut): self._cut(item, cut) for key, item in value.items()}
        return value


def split(text: str, cut: str) -> list[str]:
    """The pieces between the cuts, without empty ones."""
    return [piece for piece in (text.split(cut) if cut else [text]) if piece]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
