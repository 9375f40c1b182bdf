"""What happens to each key of OpenAI's API: honoured, accepted without effect, or refused by its name."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from pydantic import model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.errors import UnsupportedParameter

# Without effect on the result: they are for the books of whoever runs a service for many.
WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
# Values of keys that are not honoured which ask for nothing that is not so anyway.
_ANYWAY: dict[str, tuple[Any, ...]] = {
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
    """A body in OpenAI's shape. Null means left out, as OpenAI's clients write it."""

    not_here: ClassVar[dict[str, str]] = {}  # keys that other routes honour, and why this one does not

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        asked = {key: value for key, value in data.items() if value is not None and key not in WITHOUT_EFFECT}
        for key, value in list(asked.items()):
            if key in cls.model_fields:
                continue
            if not any(value == same and type(value) is type(same) for same in _ANYWAY.get(key, ())):
                raise _refusal(key, list(cls.model_fields), cls.not_here.get(key))
            del asked[key]
        return asked


def _refusal(key: str, known: list[str], why: str | None) -> UnsupportedParameter:
    shown = key[:100].encode("utf-8", "replace").decode()
    near = difflib.get_close_matches(key, known, 1, 0.75)
    remedy = f"Did you mean {near[0]!r}?" if near else "Leave it out; docs/openai.md and /docs list what is supported."
    return UnsupportedParameter(f"{shown!r} is not supported{why or ''}.", remedy, fields=[shown])
