"""Convert a response format to a grammar for llama.cpp's sampler (llguidance is part of `xllamacpp`).

llama.cpp only logs a schema that it cannot use, and continues without it; so the same library validates it first.
"""

from __future__ import annotations

import json

from backend.common.errors import UnsupportedParameter, Validation
from backend.common.types import JsonObject

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}  # otherwise small models may generate whitespace forever
_FAILED = "failed to compile JSON schema: "


def grammar_of(response_format: JsonObject) -> str:
    """Return the grammar of all matching JSON texts. Raises Validation, or UnsupportedParameter for a keyword."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise UnsupportedParameter(
            "response_format: the build of llama.cpp for this device does not support schemas.",
            "Leave it out, or request the device cpu.",
            fields=["options.response_format"],
        ) from None

    schema = (response_format["json_schema"] or {"schema": {"type": "object"}})["schema"]
    grammar = "%llguidance {}\nstart: %json " + json.dumps({**schema, **_COMPACT})
    refusal = LLMatcher.validate_grammar(grammar)
    if not refusal:
        return grammar
    why = refusal.partition(_FAILED)[2].partition("\n   1 |")[0] or refusal
    kind = UnsupportedParameter if "Unimplemented" in why else Validation
    raise kind(
        f"response_format: the schema cannot be used: {' '.join(why.split())}.",
        "Change the part of the schema that the message names.",
        fields=["options.response_format"],
    )
