"""Prompts for llama.cpp's server: typed control tokens stay text, and the begin token occurs once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.common.formats.gguf.vocabulary import CONTROL, Vocabulary
from backend.engines._llama.prompt import prompt_of

BYTES = Vocabulary(
    model="gpt2",
    pre="smollm",
    tokens=["<s>", "</s>", "<user>", "#", "Ċ", "Ġ"],
    types=[CONTROL, CONTROL, CONTROL, 1, 1, 1],
    special={"bos": 0, "eos": 1},
    add_bos=False,
)
PIECES = replace(BYTES, model="llama", add_bos=None)  # SentencePiece wants the beginning mark unless it says otherwise


@pytest.mark.parametrize(
    ("vocabulary", "pieces", "prompt"),
    [
        (BYTES, ["hello"], "hello"),
        (BYTES, [], ""),
        (BYTES, ["<s>hello"], [0, "hello"]),
        (BYTES, ["<s>"], [0]),
        (BYTES, ["<user>a<", "/s>b"], [2, "a<", "/s>b"]),
        (BYTES, ["#a<", "/s>b"], [3, "a<", "/s>b"]),
        (BYTES, ["\na<", "/s>b"], [4, "a<", "/s>b"]),
        (BYTES, [" <", "/s>b"], [5, "<", "/s>b"]),
        (BYTES, ["?a<", "/s>b"], "?a</s>b"),  # no token to begin with is known
        (replace(BYTES, add_bos=True), ["a<", "/s>b"], [0, "a<", "/s>b"]),
        (replace(BYTES, add_bos=True), ["<s>a<", "/s>b"], [0, "a<", "/s>b"]),
        (PIECES, ["a<", "/s>b"], [0, "a<", "/s>b"]),
        (replace(PIECES, add_bos=False), ["#<", "/s>b"], [3, "<", "/s>b"]),
        (replace(BYTES, special={}), ["<s>a"], "<s>a"),
    ],
)
def test_the_prompt_has_its_beginning_once_and_no_typed_marks(
    vocabulary: Vocabulary, pieces: list[str], prompt: str | list[int | str]
) -> None:
    assert prompt_of(pieces, vocabulary) == prompt
