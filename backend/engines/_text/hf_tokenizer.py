"""A vocabulary in the form of Hugging Face's `tokenizers` (tokenizer.json), which is what this library reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class HfTokens:
    """What `_text_session.py` asks of a vocabulary."""

    def __init__(self, content: str, begin: str | None, ends: Iterable[int | str], vocabulary_size: int | None) -> None:
        """`content` is that of tokenizer.json; `begin` and `ends` are tokens as they are written, or ids.

        Raises what the library raises for content that it cannot read.
        """
        import tokenizers
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizers.Tokenizer.from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._new_stream: Callable[[], Any] = lambda: DecodeStream(skip_special_tokens=True)
        find = self._tokenizer.token_to_id
        self.begin: int | None = None if begin is None else find(begin)
        found = (end if isinstance(end, int) else find(end) for end in ends)
        self.ends = frozenset(end for end in found if end is not None)
        self.vocabulary_size = vocabulary_size

    def encode(self, piece: str) -> list[int]:
        """The tokens of a text."""
        ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def stream(self) -> Callable[[int], str]:
        """What each token adds."""
        tokenizer, stream = self._tokenizer, self._new_stream()
        return lambda token: stream.step(tokenizer, token) or ""

    def text(self, token: int) -> str:
        """One token by itself."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))
