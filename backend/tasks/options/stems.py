"""The options of stems: which of them, in which kind of file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import StrictModel
from backend.tasks.stems.choices import CHUNK_LEAST_S, CHUNK_MOST_S

Stem = Literal["vocals", "accompaniment", "drums", "bass", "other"]


class StemsOptions(StrictModel):
    """A sound file taken apart."""

    stems: Annotated[list[Stem], Field(min_length=1)] | None = Field(
        None,
        description="Which to write, of those that the model makes; default: all",
        json_schema_extra={"uniqueItems": True},
    )
    format: Literal["wav", "flac", "wav-float"] = Field(
        "wav", description="24 bits in WAV or FLAC, or WAV with floats, which also holds sounds over full scale"
    )
    chunk_seconds: float | None = Field(
        None,
        ge=CHUNK_LEAST_S,
        le=CHUNK_MOST_S,
        allow_inf_nan=False,
        description="How much is separated at once; default: what the model was trained on. Less takes less memory",
    )
