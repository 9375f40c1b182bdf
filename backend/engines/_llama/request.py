"""The body of a completion for llama.cpp's server, with the names and ranges that it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.common.types import JsonObject
from backend.engines._llama.grammar import grammar_of

_PASSED_THROUGH = ("max_tokens", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "logit_bias")


def completion_body(options: Mapping[str, Any], seed: int, context_tokens: int, reuse_cache: bool) -> JsonObject:
    """Return the body without the prompt. Raises Validation or UnsupportedParameter for a schema."""
    body: JsonObject = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "timings_per_token": True,
        "cache_prompt": reuse_cache,
        "seed": seed,
        "min_p": 0.0,  # on by default in the server, but not one of Touchstone's options
        "repeat_penalty": options["repetition_penalty"],
        "repeat_last_n": context_tokens,  # penalties count prompt and text, not only the last 64 tokens
        **{key: options[key] for key in _PASSED_THROUGH},
    }
    if options["logprobs"] is not None:
        body["n_probs"] = max(1, options["logprobs"])
    if options["response_format"]:
        body["grammar"] = grammar_of(options["response_format"])
    return body
