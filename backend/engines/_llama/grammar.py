"""From a response format to the grammar that llama.cpp's sampler keeps to (llguidance is built into `xllamacpp`).

llama.cpp writes a schema that it cannot use to its log and goes on without any; so the same library is asked before.
"""

from __future__ import annotations

import json
from typing import Any

from backend.common.errors import UnsupportedParameter, Validation

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}  # small models else write white space without end
_FAILED = "failed to compile JSON schema: "


def grammar_of(response_format: dict[str, Any]) -> str:
    """The grammar of all JSON texts that fit. Raises Validation, or UnsupportedParameter for a key it does not know."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise UnsupportedParameter(
            "response_format: the build of llama.cpp for this device cannot hold a text to a schema.",
            "Leave it out, or ask for the device cpu.",
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
        "Change the schema; what is not possible is named.",
        fields=["options.response_format"],
    )
