"""Decides for each key of OpenAI's API: supported, accepted without effect, or refused by name."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from pydantic import model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.errors import UnsupportedParameter

# Without effect on the result: accounting and analytics of hosted services.
WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
# Values of unsupported keys that request the default behaviour.
_NO_OP_VALUES: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "include_obfuscation": (False,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
    "verbosity": ("medium",),
}


class Body(StrictModel):
    """A body in OpenAI's shape. Null means the default, as OpenAI's clients send it."""

    unsupported_here: ClassVar[
        dict[str, str]
    ] = {}  # keys that other routes support, with the reason why this one does not

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {key: value for key, value in data.items() if value is not None and key not in WITHOUT_EFFECT}
        for key, value in list(kept.items()):
            if key in cls.model_fields:
                continue
            if not any(value == no_op and type(value) is type(no_op) for no_op in _NO_OP_VALUES.get(key, ())):
                raise _refusal(key, list(cls.model_fields), cls.unsupported_here.get(key))
            del kept[key]
        return kept


def _refusal(key: str, known: list[str], why: str | None) -> UnsupportedParameter:
    name = key[:100].encode("utf-8", "replace").decode()
    near = difflib.get_close_matches(key, known, 1, 0.75)
    remedy = f"Did you mean {near[0]!r}?" if near else "Remove it. docs/openai.md and /docs list the supported keys."
    return UnsupportedParameter(f"{name!r} is not supported{why or ''}.", remedy, fields=[name])
