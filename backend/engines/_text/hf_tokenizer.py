"""A vocabulary in the format of Hugging Face's `tokenizers` library (tokenizer.json)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class HfVocabulary:
    """Implements the protocol `Vocabulary` of `session.py`."""

    def __init__(self, content: str, begin: str | None, ends: Iterable[int | str], vocabulary_size: int | None) -> None:
        """Parse `content`, the text of tokenizer.json. `begin` and `ends` are tokens as strings, or ids.

        Raises the library's exceptions for content that it cannot parse.
        """
        import tokenizers
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizers.Tokenizer.from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._new_stream: Callable[[], Any] = lambda: DecodeStream(skip_special_tokens=True)
        find = self._tokenizer.token_to_id
        self.begin: int | None = None if begin is None else find(begin)
        end_ids = (end if isinstance(end, int) else find(end) for end in ends)
        self.ends = frozenset(end_id for end_id in end_ids if end_id is not None)
        self.vocabulary_size = vocabulary_size

    def encode(self, piece: str) -> list[int]:
        """Return the tokens of a text."""
        ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def stream(self) -> Callable[[int], str]:
        """Return a function that returns the text that each further token adds."""
        tokenizer, stream = self._tokenizer, self._new_stream()
        return lambda token: stream.step(tokenizer, token) or ""

    def text(self, token: int) -> str:
        """Return the text of a single token."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))
