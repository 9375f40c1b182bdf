"""The vocabulary of a loaded GGUF model, by llama.cpp's own tokenizer."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Callable
from typing import Any

from backend.common.formats.gguf.vocabulary import Vocabulary as FileVocabulary

_NORMAL, _BYTE = 1, 6
_PIECE_BYTES = 256
_BEFORE = "\n"  # a text that no token joins with what follows
_Decoder = codecs.getincrementaldecoder("utf-8")


class LlamaVocabulary:
    """Implements the protocol `Vocabulary` of `_text/session.py`."""

    def __init__(self, llama: Any, handle: int, file: FileVocabulary) -> None:
        """`handle` is the address of the library's vocabulary, `file` what the GGUF file declares."""
        self._llama, self.handle = llama, handle
        self.vocabulary_size: int | None = llama.llama_vocab_n_tokens(handle)
        self.begin: int | None = llama.llama_vocab_bos(handle) if llama.llama_vocab_get_add_bos(handle) else None
        self.ends = frozenset(
            token
            for token in _possible_ends(file, llama.llama_vocab_eos(handle))
            if llama.llama_vocab_is_eog(handle, token)
        )
        self._pieces: dict[int, bytes] = {}

    def encode(self, piece: str) -> list[int]:
        """Return the tokens of a text. Special tokens are parsed, and none is added."""
        return self.tokens(piece, add_special=False)

    def tokens(self, text: str, add_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special`: with the tokens that the model wants before and after a text."""
        encoded = text.encode("utf-8", "replace")
        room = len(encoded) + 2
        while True:
            tokens = (ctypes.c_int32 * room)()
            count: int = self._llama.llama_tokenize(self.handle, encoded, len(encoded), tokens, room, add_special, True)
            if count >= 0:
                return tokens[:count]
            room = -count

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another text: some vocabularies put a space before a text."""
        tokens = self.encode(text)
        if self.piece(self.encode("a")[0])[:1] == b"a":
            return tokens
        before = self.encode(_BEFORE)
        tokens = self.encode(_BEFORE + text)
        return tokens[len(before) :] if tokens[: len(before)] == before else self.encode(text)

    def stream(self) -> Callable[[int], str]:
        """Return a function that returns the text that each further token adds; empty within a character."""
        decoder = _Decoder(errors="replace")
        return lambda token: decoder.decode(self.piece(token))

    def text(self, token: int) -> str:
        """Return the text of a single token."""
        return self._read(token, special=True).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; none for control tokens."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._read(token, special=False)
        return found

    def all_bytes(self) -> list[bytes]:
        """Return the bytes of every token, control tokens by their names."""
        return [self._read(token, special=True) for token in range(self.vocabulary_size or 0)]

    def is_control(self, token: int) -> bool:
        """Return whether a token never results from text."""
        return bool(self._llama.llama_vocab_is_control(self.handle, token))

    def _read(self, token: int, special: bool) -> bytes:
        room = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self._llama.llama_token_to_piece(self.handle, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count


def _possible_ends(file: FileVocabulary, end: int) -> list[int]:
    """Return the tokens that may end a text: those that are not plain text, and names in brackets."""
    listed = enumerate(zip(file.tokens, file.types or [0] * len(file.tokens), strict=False))
    named = [
        token for token, (text, kind) in listed if kind not in (_NORMAL, _BYTE) or text.startswith(("<", "[", "_<"))
    ]
    return [*named, *([end] if end >= 0 else [])]
