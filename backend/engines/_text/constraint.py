"""Texts that match a JSON schema, by llguidance: it returns which tokens may follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from backend.common.errors import UnsupportedParameter, Validation
from backend.common.types import JsonObject

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}  # otherwise small models may generate whitespace forever
_FAILED = "failed to compile JSON schema: "


class SchemaConstraint:
    """Implements `Constraint` of `batch_decoder.py`."""

    def __init__(self, matcher: Any, ends: frozenset[int]) -> None:
        """`ends` are the tokens that end a text."""
        self._matcher, self._ends = matcher, ends

    def accept(self, token: int) -> bool:
        """Append a token. Returns False, and changes nothing, if it is not allowed here."""
        if self._matcher.is_stopped():  # then it consumes no further token
            return token in self._ends
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def allowed(self) -> bytes:
        """Return one byte per token of the vocabulary: 0 if the token is not allowed here."""
        return bytes(self._matcher.compute_logit_bias())


class Constraints:
    """Makes constraints for one vocabulary. `make_tokenizer` returns its `LLTokenizer`; it is called once.

    `ends` are the tokens that end a text.
    """

    def __init__(self, make_tokenizer: Callable[[], Any], ends: frozenset[int]) -> None:
        self._make_tokenizer, self._ends = make_tokenizer, ends
        self._tokenizer: Any = None

    def of(self, response_format: JsonObject | None) -> SchemaConstraint | None:
        """Return the constraint of a response format; None without one. Raises Validation, UnsupportedParameter."""
        if not response_format:
            return None
        grammar = grammar_of(response_format)
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return SchemaConstraint(matcher, self._ends)


def grammar_of(response_format: JsonObject) -> str:
    """Return the grammar of all matching JSON texts. Raises Validation, or UnsupportedParameter for a keyword."""
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError:
        raise UnsupportedParameter(
            "response_format: the environment of this engine has no llguidance, which schemas need.",
            "Leave it out, update the runtime, or request the device cpu.",
            fields=["options.response_format"],
        ) from None

    schema = (response_format["json_schema"] or {"schema": {"type": "object"}})["schema"]
    grammar = "%llguidance {}\nstart: %json " + json.dumps({**schema, **_COMPACT})
    if refusal := LLMatcher.validate_grammar(grammar):
        raise _refusal(refusal)
    return grammar


def _refusal(message: str) -> Validation | UnsupportedParameter:
    why = message.partition(_FAILED)[2].partition("\n   1 |")[0] or message
    kind = UnsupportedParameter if "Unimplemented" in why else Validation
    return kind(
        f"response_format: the schema cannot be used: {' '.join(why.split())}.",
        "Change the part of the schema that the message names.",
        fields=["options.response_format"],
    )
