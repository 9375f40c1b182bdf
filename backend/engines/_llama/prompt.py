"""Build the prompt for llama.cpp's server: one text, or token ids and texts that are tokenized separately."""

from __future__ import annotations

from backend.common.formats.gguf.vocabulary import Vocabulary

_BYTES = {" ": "Ġ", "\n": "Ċ"}  # as byte-level vocabularies write them


def prompt_of(pieces: list[str], vocabulary: Vocabulary) -> str | list[int | str]:
    """Return the pieces as one prompt.

    The server accepts a list as one prompt only if it has an id, and adds no BOS token to it. To a text it adds the
    BOS token that the model needs, which must not occur twice.
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
    assert first is not None, "a token with a text has an id"
    return [first, *([text] if text else []), *rest]
