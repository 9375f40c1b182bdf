"""Options of the tune generator from the request and the prompt: explicit options win over the prompt's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.common.errors import Validation
from backend.common.types import JsonObject
from backend.tasks.music.controls import check_options
from backend.tasks.music.prompt_parser import ParsedPrompt, parse_prompt
from backend.tasks.options import parse_options

PROMPT_LIMIT = 5000  # characters; the prompt is parsed in the server's event loop


def apply_prompt(prompt: str | None, options: Mapping[str, Any]) -> tuple[JsonObject, ParsedPrompt | None]:
    """Return all options, and the parsed prompt if there is one. Raises Validation."""
    given = parse_options("music", options)
    if prompt and len(prompt) > PROMPT_LIMIT:
        raise Validation(
            f"prompt: {len(prompt)} characters; the limit is {PROMPT_LIMIT}.",
            "Shorten the description; send an opening phrase as options.abc.",
            fields=["prompt"],
        )
    understood = parse_prompt(prompt, given) if prompt else None
    merged = parse_options("music", {**given, **(understood.options if understood else {})})
    check_options(merged)
    return merged, understood
