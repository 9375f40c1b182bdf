"""The options of music from both: what the caller set, and what the words of the prompt say where that is left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.common.errors import Validation
from backend.tasks.music.controls import check
from backend.tasks.music.prompt_parser import Understood, read
from backend.tasks.options import parse_options

WORDS_LIMIT = 5000  # characters: the words are read while nothing else is served


def wished(prompt: str | None, options: Mapping[str, Any]) -> tuple[dict[str, Any], Understood | None]:
    """All options, and what was made of the words, if there were any. Raises Validation."""
    given = parse_options("music", options)
    if prompt and len(prompt) > WORDS_LIMIT:
        raise Validation(
            f"prompt: the wish has {len(prompt)} characters, and at most {WORDS_LIMIT} are read.",
            "Say it in fewer words; an opening phrase goes into options.abc.",
            fields=["prompt"],
        )
    said = read(prompt, given) if prompt else None
    whole = parse_options("music", {**given, **(said.options if said else {})})
    check(whole)
    return whole, said
