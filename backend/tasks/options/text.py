"""The options of text generation: sampling, stop conditions and the response format."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from backend.common.config.strict_model import StrictModel
from backend.common.seeds import SEEDS
from backend.common.types import JsonObject
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.sampling_numbers import MIN_REPETITION_PENALTY, Share, Temperature
from backend.tasks.options.tools import Tool

STOP_LIMIT = 16
BIAS_LIMIT = 1024
LOGPROBS_LIMIT = 20
TOOL_LIMIT = 128
TOKENS_LIMIT = 1_000_000
TEMPERATURE = "Sampling temperature; 0 always picks the most likely token, higher values vary more; below 0.001 is 0"
_TOKEN_ID = re.compile(r"0|[1-9]\d{0,9}")


def _check_stop(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if texts is None or (
        isinstance(texts, list) and len(texts) <= STOP_LIMIT and all(isinstance(t, str) and t for t in texts)
    ):
        return texts
    raise ValueError(f"should be a non-empty text, or a list of at most {STOP_LIMIT} non-empty texts")


def _check_logit_bias(value: Any) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(key, str) and _TOKEN_ID.fullmatch(key) for key in value):
            raise ValueError("should have token ids as keys: integers written as strings")
        if len(value) > BIAS_LIMIT:
            raise ValueError(f"should have at most {BIAS_LIMIT} tokens")
    return None if value == {} else value


def layer_count(value: Any) -> Any:
    """Return a number of layers, or `auto`. Raises ValueError."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is None or value == "auto" or (is_number and 0 <= value <= LAYER_LIMIT):
        return value
    raise ValueError(f"should be auto, or a number from 0 to {LAYER_LIMIT}")


LAYER_LIMIT = 10_000
LayerCount = Annotated[int, Field(ge=0, le=LAYER_LIMIT)] | Literal["auto"]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Sampling(StrictModel):
    """The sampling options, with the names that other text generation services use."""

    max_tokens: int = Field(256, ge=1, le=1_000_000, description="Maximum number of tokens to generate")
    temperature: Temperature = Field(0.7, ge=0, le=2, allow_inf_nan=False, description=TEMPERATURE)
    top_p: Share = Field(
        0.95,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Nucleus sampling: sample from the most likely tokens whose probabilities sum to this",
    )
    top_k: int = Field(40, ge=0, le=1_000_000, description="Sample from this many of the most likely tokens; 0 is all")
    seed: int | None = Field(
        None, ge=0, le=SEEDS - 1, description="Random seed; the same seed gives the same text; default: random"
    )
    stop: Annotated[str | list[str] | None, BeforeValidator(_check_stop)] = Field(
        None, description=f"Stop sequence, or a list of up to {STOP_LIMIT}; generation ends before it; default: none"
    )
    repetition_penalty: float = Field(
        1.0,
        ge=MIN_REPETITION_PENALTY,
        le=2,
        allow_inf_nan=False,
        description="Penalty on repeated tokens; 1 is off",
    )
    presence_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted once from the logit of each token that occurs in the prompt or the text",
    )
    frequency_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted from a token's logit for each of its occurrences in the prompt or the text",
    )
    logit_bias: Annotated[dict[str, Bias] | None, BeforeValidator(_check_logit_bias)] = Field(
        None, description="Added to the logits of tokens, -100 to 100 by token id; default: none"
    )


# The template reads them itself, or they are set by the service.
_RESERVED_NAMES = frozenset("messages tools documents add_generation_prompt continue_final_message".split())
# Options that make the prompt. Every text engine honours them, since all build their prompts the same way.
# Options that decide how a model is loaded: engines that plan their memory honour them.
LOAD_OPTIONS = frozenset({"gpu_layers"})
PROMPT_OPTIONS = frozenset("raw tools chat_template_kwargs reasoning_effort prompt_tokens".split())


def _check_template_names(value: Any) -> Any:
    if isinstance(value, dict) and (reserved := sorted(_RESERVED_NAMES & value.keys())):
        raise ValueError(f"{reserved[0]} cannot be set here: it is made from the request")
    return None if value == {} else value


class TextOptions(Sampling):
    """Sampling, log probabilities, response format and tools of one generated text."""

    logprobs: int | None = Field(
        None,
        ge=0,
        le=LOGPROBS_LIMIT,
        description="Return each token's log probability and this many of the most likely tokens; default: none",
    )
    response_format: Annotated[ResponseFormat | None, BeforeValidator(ResponseFormat.none_if_plain)] = Field(
        None, description="Restrict the text to JSON, or to a JSON Schema; default: free text"
    )
    raw: bool = Field(False, description="Pass the prompt to the model unchanged, without the model's chat template")
    tools: list[Tool] | None = Field(
        None, max_length=TOOL_LIMIT, description="Functions that the model may call; default: none"
    )
    chat_template_kwargs: Annotated[JsonObject | None, BeforeValidator(_check_template_names)] = Field(
        None, description="Values for variables of the model's chat template, such as enable_thinking; default: none"
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="How much a model that thinks should think; default: the model's own"
    )
    gpu_layers: Annotated[LayerCount | None, BeforeValidator(layer_count)] = Field(
        None,
        description="Layers of a GGUF model on the card, or auto: as many as fit; default: as it is loaded, or "
        "text.gpu_layers in config.yaml",
    )
    prompt_tokens: Annotated[list[TokenId], Field(min_length=1, max_length=TOKENS_LIMIT)] | None = Field(
        None, description="The prompt as token ids of the model's vocabulary, instead of a text; default: none"
    )
