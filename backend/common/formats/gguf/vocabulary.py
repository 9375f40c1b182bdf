"""The tokenizer in a GGUF file: tokens, token types, merges, special ids and the chat template.

Reader skips long strings and lists, which are only needed to load or convert a model. The file was checked before;
reads are still bounded by its size.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.common.files import open_regular_file
from backend.common.formats.gguf.kinds import check_kind, damaged, truncated
from backend.common.formats.gguf.reader import Reader

CONTROL = 3  # llama.cpp's token types: normal 1, unknown 2, control 3, user defined 4, unused 5, byte 6
USER_DEFINED = 4
# End-of-text tokens besides the one that the file declares: llama.cpp's list (llama-vocab.cpp).
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>"),
    *("<|end_of_text|>", "<end_of_utterance>"),
)
_PREFIX = "tokenizer."
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_BYTES = 1 << 20
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a GGUF file. A missing fact is None or empty."""

    model: str | None  # "gpt2" for byte-level BPE, "llama" for SentencePiece
    pre: str | None  # name of the pre-tokenizer in llama.cpp
    tokens: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)  # bos, eos, unk, pad: ids
    add_bos: bool | None = None
    chat_template: str | None = None

    def text(self, name: str) -> str | None:
        """Return the text of a special token, None if the file does not declare it."""
        number = self.special.get(name)
        return self.tokens[number] if number is not None and 0 <= number < len(self.tokens) else None

    def control_marks(self) -> list[str]:
        """Return the control tokens, which never result from text."""
        return [token for token, kind in zip(self.tokens, self.types, strict=False) if kind == CONTROL]


def read_vocabulary(path: Path, merges: bool = True, byteorder: str = sys.byteorder) -> Vocabulary:
    """Parse the tokenizer of a GGUF file; without `merges` in half the time. Raises ModelBroken, OSError."""
    with open_regular_file(path) as file:
        size = path.stat().st_size
        check_kind(path.name, file.read(512), size, byteorder)
        facts = _TokenizerReader(file, size, path.name, byteorder).tokenizer(
            () if merges else ("tokenizer.ggml.merges",)
        )
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {name: facts.get(f"tokenizer.ggml.{word}_token_id") for name, word in ids.items()}
    return Vocabulary(
        model=_text(facts.get("tokenizer.ggml.model")),
        pre=_text(facts.get("tokenizer.ggml.pre")),
        tokens=facts.get("tokenizer.ggml.tokens") or [],
        types=facts.get("tokenizer.ggml.token_type") or [],
        merges=facts.get("tokenizer.ggml.merges") or [],
        special={name: number for name, number in named.items() if isinstance(number, int)},
        add_bos=facts.get("tokenizer.ggml.add_bos_token"),
        chat_template=_text(facts.get(_TEMPLATE)),
    )


def read_chat_template(path: Path, byteorder: str = sys.byteorder) -> str | None:
    """Return the chat template of a GGUF file, None without one or for one over 1 MB. Raises ModelBroken, OSError."""
    with open_regular_file(path) as file:
        size = path.stat().st_size
        check_kind(path.name, file.read(512), size, byteorder)
        return _TokenizerReader(file, size, path.name, byteorder).chat_template()


class _TokenizerReader(Reader):
    """A Reader that keeps the lists and long strings of the tokenizer and skips others."""

    def tokenizer(self, skipped: tuple[str, ...]) -> dict[str, Any]:
        self.number("I")
        self.number("Q")
        facts: dict[str, Any] = {}
        for _ in range(int(self.number("Q"))):
            key = self.text() or ""
            kind = int(self.number("I"))
            facts[key] = self._parse_complete(kind) if self._wanted(key, skipped) else self.value(kind)
        return facts

    def chat_template(self) -> str | None:
        """Return the chat template, without the lists before it."""
        self.number("I")
        self.number("Q")
        for _ in range(int(self.number("Q"))):
            key, kind = self.text(), int(self.number("I"))
            if key == _TEMPLATE and kind == 8:
                length = int(self.number("Q"))
                return self.take(length).decode("utf-8", "replace") if length <= _TEMPLATE_BYTES else None
            self.value(kind)
        return None

    @staticmethod
    def _wanted(key: str, skipped: tuple[str, ...]) -> bool:
        return key.startswith(_PREFIX) and key not in skipped

    def _parse_complete(self, kind: int) -> Any:
        if kind == 8:
            return self._long_text()
        if kind != 9:
            return self.value(kind)
        inner, count = int(self.number("I")), int(self.number("Q"))
        if inner == 8:
            self.bounded("texts in a list", count, 4_000_000, 8)
            return self._texts(count)
        if inner not in _NUMBERS:
            raise damaged(self.name, f"a list has the unknown type {inner}")
        self.bounded("numbers in a list", count, 4_000_000, struct.calcsize("=" + _NUMBERS[inner]))
        form = f"{self.order}{count}{_NUMBERS[inner]}"
        return list(struct.unpack(form, self.take(struct.calcsize(form))))

    def _texts(self, count: int) -> list[str]:
        """Parse a list of strings in blocks: for a large vocabulary each call counts."""
        length_at = struct.Struct(self.order + "Q").unpack_from
        texts: list[str] = []
        block, at = b"", 0  # `at` is relative to self.at, the start of the block
        for _ in range(count):
            if at + 8 > len(block):
                self.skip(at)
                block, at = self.file.read(1 << 20), 0
                if len(block) < 8:
                    raise truncated(self.name, f"a list of texts ends after byte {self.at}")
            end = at + 8 + length_at(block, at)[0]
            if end > len(block):
                self.skip(at)
                end, at = end - at, 0
                block = self.file.read(min(end, self.size - self.at))
                if end > len(block):
                    raise truncated(self.name, f"a list of texts ends after byte {self.at}")
            texts.append(block[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self.skip(at)
        return texts

    def _long_text(self) -> str:
        return self.take(int(self.number("Q"))).decode("utf-8", "replace")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
