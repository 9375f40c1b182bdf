"""Decides for each key of other APIs: supported, accepted without effect, or refused by name."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from pydantic import model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.errors import UnsupportedParameter
from backend.common.types import JsonObject

# Without effect on the result: accounting, analytics and caches of hosted services.
WITHOUT_EFFECT = frozenset(
    "user metadata store safety_identifier prompt_cache_key prompt_cache_retention request_id cache_control".split()
)
# Values of unsupported keys that request the default behaviour; OpenAI's keys, then those of vLLM and llama.cpp.
_NO_OP_VALUES: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none",),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "add_special_tokens": (True,),
    "allowed_token_ids": (),
    "cache_prompt": (True,),
    "length_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "mirostat": (0,),
    "n_keep": (0,),
    "priority": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
}
# Keys whose empty value, or false, would change the result.
_EMPTY_HAS_EFFECT = frozenset(
    "add_special_tokens cache_prompt skip_special_tokens spaces_between_special_tokens web_search_options".split()
)
# Values of supported keys that mean the default.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "seed": (-1,),
    "top_k": (-1,),
    "max_tokens": (-1,),
    "max_completion_tokens": (-1,),
    "max_output_tokens": (-1,),
    "stop": ([],),
    "logit_bias": ({},),
    "chat_template_kwargs": ({},),
}
_ALIASES = {"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens"}


class Body(StrictModel):
    """A body in the shape of another API. Null means the default, as clients send it."""

    unsupported_here: ClassVar[
        dict[str, str]
    ] = {}  # keys that other routes support, with the reason why this one does not
    defaults_here: ClassVar[dict[str, tuple[Any, ...]]] = {}  # values of this body's keys that mean the default
    without_effect_here: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.known_names()
        kept: JsonObject = {}
        for key, value in data.items():
            name = _ALIASES[key] if _ALIASES.get(key) in known and key not in known else key
            if value is None or (key not in known and key in (WITHOUT_EFFECT | cls.without_effect_here)):
                continue
            if _is_one_of(value, (*_DEFAULTS.get(name, ()), *cls.defaults_here.get(name, ()))) and name in known:
                continue
            if name in known:
                if name in kept and kept[name] != value:
                    raise _contradiction(key, name)
                kept[name] = value
            elif not cls._is_no_op(key, value, data):
                raise _refusal(key, known, cls.unsupported_here.get(key))
        return kept

    @classmethod
    def _is_no_op(cls, key: Any, value: Any, data: JsonObject) -> bool:
        """Return whether an unsupported key asks for the default behaviour."""
        if _is_one_of(value, _NO_OP_VALUES.get(key, ())):
            return True
        if key == "best_of":
            return _is_one_of(value, (data.get("n"),))
        is_empty = value is False or _is_one_of(value, ([], {}, ""))
        return is_empty and key not in _EMPTY_HAS_EFFECT and not _near(str(key), cls.known_names())


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    return any(value == other and type(value) is type(other) for other in values)


def _near(key: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(key[:100], known, 1, 0.75)


def _refusal(key: str, known: list[str], why: str | None) -> UnsupportedParameter:
    name = key[:100].encode("utf-8", "replace").decode()
    near = _near(name, known)
    remedy = f"Did you mean {near[0]!r}?" if near else "Remove it. docs/openai.md and /docs list the supported keys."
    return UnsupportedParameter(f"{name!r} is not supported{why or ''}.", remedy, fields=[name])


def _contradiction(key: str, name: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{key} and {name} mean the same and differ.", "Leave one of the two out.", fields=[key]
    )
