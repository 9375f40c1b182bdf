"""The options of text: how it is sampled, when it ends and which form it takes."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from backend.common.config.strict_model import StrictModel
from backend.common.seeds import SEEDS
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.tools import Tool

STOP_LIMIT = 16
BIAS_LIMIT = 1024
LOGPROBS_LIMIT = 20
TOOL_LIMIT = 128
_TOKEN_ID = re.compile(r"0|[1-9]\d{0,9}")


def _stops(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if texts is None or (
        isinstance(texts, list) and len(texts) <= STOP_LIMIT and all(isinstance(t, str) and t for t in texts)
    ):
        return texts
    raise ValueError(f"should be a text, or a list of at most {STOP_LIMIT} texts, none of them empty")


def _biases(value: Any) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(key, str) and _TOKEN_ID.fullmatch(key) for key in value):
            raise ValueError("should have token ids as keys, whole numbers written as texts")
        if len(value) > BIAS_LIMIT:
            raise ValueError(f"should name at most {BIAS_LIMIT} tokens")
    return None if value == {} else value


Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Sampling(StrictModel):
    """What text programs know by the same names from other services."""

    max_tokens: int = Field(256, ge=1, le=1_000_000, description="Most tokens to generate")
    temperature: float = Field(0.7, ge=0, le=2, allow_inf_nan=False, description="0 always takes the likeliest token")
    top_p: float = Field(0.95, gt=0, le=1, allow_inf_nan=False, description="Share of probability to sample from")
    top_k: int = Field(40, ge=0, le=1_000_000, description="Number of likeliest tokens to sample from; 0 is all")
    seed: int | None = Field(None, ge=0, le=SEEDS - 1, description="The same seed gives the same text")
    stop: Annotated[str | list[str] | None, BeforeValidator(_stops)] = Field(
        None, description="Text, or list of texts, at which the generation ends"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=2, allow_inf_nan=False, description="Above 1 discourages repetition"
    )
    presence_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Taken from the logit of each token that stands in the prompt or the text",
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, allow_inf_nan=False, description="Taken from a token's logit for each time it stands there"
    )
    logit_bias: Annotated[dict[str, Bias] | None, BeforeValidator(_biases)] = Field(
        None, description="What to add to the logits of tokens, by the token's id in the model's vocabulary"
    )


class TextOptions(Sampling):
    """How text is sampled, when it ends and which form it takes."""

    logprobs: int | None = Field(
        None, ge=0, le=LOGPROBS_LIMIT, description="List each token's log probability, and this many likeliest tokens"
    )
    response_format: Annotated[ResponseFormat | None, BeforeValidator(ResponseFormat.unless_plain)] = Field(
        None, description="Hold the text to JSON, or to a JSON Schema"
    )
    raw: bool = Field(False, description="Give the prompt to the model as it is, without the model's chat template")
    tools: list[Tool] | None = Field(
        None, max_length=TOOL_LIMIT, description="Functions that the chat template tells the model of"
    )
