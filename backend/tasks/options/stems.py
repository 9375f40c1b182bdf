"""The options of source separation: the stems to write and their file format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import StrictModel
from backend.tasks.stems.choices import CHUNK_MAX_S, CHUNK_MIN_S

Stem = Literal["vocals", "accompaniment", "drums", "bass", "other"]


class StemsOptions(StrictModel):
    """Separation of an audio file into stems."""

    stems: Annotated[list[Stem], Field(min_length=1)] | None = Field(
        None,
        description="Stems to write, of those that the model separates (default: all)",
        json_schema_extra={"uniqueItems": True},
    )
    format: Literal["wav", "flac", "wav-float"] = Field(
        "wav", description="File format: wav and flac have 24 bits, wav-float has 32-bit floats and does not clip"
    )
    chunk_seconds: float | None = Field(
        None,
        ge=CHUNK_MIN_S,
        le=CHUNK_MAX_S,
        allow_inf_nan=False,
        description="Chunk length in seconds; shorter chunks need less memory; default: the model's training length",
    )
