"""The prompt as llama.cpp's server takes it: one text, or ids and texts that are tokenized each for itself."""

from __future__ import annotations

from backend.common.formats.gguf.vocabulary import Vocabulary

_BYTES = {" ": "Ġ", "\n": "Ċ"}  # as byte-level vocabularies write them


def prompt_of(pieces: list[str], vocabulary: Vocabulary) -> str | list[int | str]:
    """The pieces as one prompt.

    The server takes a list for one prompt only with an id in it, and adds no beginning mark there; to a text it adds
    the one that the model wants, which must not stand there twice.
    """
    text, rest = (pieces or [""])[0], pieces[1:]
    bos, written = vocabulary.special.get("bos"), vocabulary.text("bos")
    if written and text.startswith(written):
        return _with(bos, text[len(written) :], rest)
    if not rest:
        return text
    if bos is not None and (vocabulary.model == "llama" if vocabulary.add_bos is None else vocabulary.add_bos):
        return _with(bos, text, rest)
    mark = max((mark for mark in vocabulary.control_marks() if text.startswith(mark)), key=len, default="")
    first = mark or _BYTES.get(text[0], text[0])
    if first not in vocabulary.tokens:
        return "".join(pieces)
    return _with(vocabulary.tokens.index(first), text[len(mark) or 1 :], rest)


def _with(first: int | None, text: str, rest: list[str]) -> list[int | str]:
    assert first is not None, "a token that is written has an id"
    return [first, *([text] if text else []), *rest]
