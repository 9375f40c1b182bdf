"""The options of text: how it is sampled and when it ends."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from backend.strict import Strict

STOP_LIMIT = 16


def _stops(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if texts is None or (
        isinstance(texts, list) and len(texts) <= STOP_LIMIT and all(isinstance(t, str) and t for t in texts)
    ):
        return texts
    raise ValueError(f"should be a text, or a list of at most {STOP_LIMIT} texts, none of them empty")


class TextOptions(Strict):
    """How text is sampled and when it ends."""

    max_tokens: int = Field(256, ge=1, le=1_000_000, description="Most tokens to generate")
    temperature: float = Field(0.7, ge=0, le=2, allow_inf_nan=False, description="0 always takes the likeliest token")
    top_p: float = Field(0.95, gt=0, le=1, allow_inf_nan=False, description="Share of probability to sample from")
    top_k: int = Field(40, ge=0, le=1_000_000, description="Number of likeliest tokens to sample from; 0 is all")
    seed: int | None = Field(None, ge=0, le=2**32 - 2, description="The same seed gives the same text")
    stop: Annotated[str | list[str] | None, BeforeValidator(_stops)] = Field(
        None, description="Text, or list of texts, at which the generation ends"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=2, allow_inf_nan=False, description="Above 1 discourages repetition"
    )
