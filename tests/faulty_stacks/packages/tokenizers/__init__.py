"""A stand-in for tokenizers 0.23: a vocabulary of bytes, and marks."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

__version__ = "0.23.3"


class Tokenizer:
    """Byte by byte; the added tokens of tokenizer.json are one token each."""

    def __init__(self, model: dict[str, int]) -> None:
        self._added = model
        self._marks = re.compile("(" + "|".join(map(re.escape, model)) + ")")

    @staticmethod
    def from_str(json_text: str) -> Tokenizer:
        """Reads the content of tokenizer.json."""
        return Tokenizer({token["content"]: token["id"] for token in json.loads(json_text)["added_tokens"]})

    def no_truncation(self) -> None:
        """Texts stay as long as they are."""

    def no_padding(self) -> None:
        """And as short."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a mark."""
        return self._added.get(token)

    def encode(self, sequence: str, add_special_tokens: bool = True) -> Any:
        """The tokens of a text."""
        ids: list[int] = []
        for part in self._marks.split(sequence):
            ids += [self._added[part]] if part in self._added else part.encode()
        return SimpleNamespace(ids=ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        marks = {number: mark for mark, number in self._added.items()}
        parts = [bytes([one]) if one < 256 else b"" if skip_special_tokens else marks[one].encode() for one in ids]
        return b"".join(parts).decode(errors="replace")
