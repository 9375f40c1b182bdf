"""The options of lyrics: the song's subject and sections, and how its text is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from backend.common.engine_api import SongFields
from backend.common.types import JsonObject
from backend.tasks.lyrics.sections import DEFAULT_LINES, DEFAULT_SECTIONS, KINDS, MAX_LINES, MAX_SECTIONS
from backend.tasks.options.sampling_numbers import MIN_REPETITION_PENALTY, Temperature
from backend.tasks.options.text import TEMPERATURE, Sampling


def _normalise_sections(value: Any) -> Any:
    """Return the section kinds in their standard spelling. Raises ValueError for an unknown kind."""
    if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
        return value
    folded = [kind.strip().casefold().replace("_", "-").replace(" ", "-") for kind in value]
    if unknown := [given[:50] for given, kind in zip(value, folded, strict=True) if kind not in KINDS]:
        raise ValueError(f"unknown section {unknown[0]!r}; choose from {', '.join(KINDS)}")
    return folded


def _text_of(limit: int) -> StringConstraints:
    return StringConstraints(strip_whitespace=True, min_length=1, max_length=limit)


class LyricsOptions(Sampling):
    """The lyrics of a song, written section by section."""

    theme: Annotated[str, _text_of(500)] | None = Field(None, description="Subject of the song; default: the prompt's")
    style: Annotated[str, _text_of(200)] | None = Field(
        None, description="Style, such as folk ballad, blues or sea shanty; default: none"
    )
    language: Annotated[str, _text_of(50)] = Field(
        "English", description="Language by its English name; the smallest models only write English well"
    )
    sections: Annotated[
        list[str], BeforeValidator(_normalise_sections), Field(min_length=1, max_length=MAX_SECTIONS)
    ] = Field(
        list(DEFAULT_SECTIONS),
        description=f"Sections in their order, any of {', '.join(KINDS)}; every chorus has the same words",
    )
    lines_per_section: int = Field(DEFAULT_LINES, ge=1, le=MAX_LINES, description="Number of lines in each section")
    temperature: Temperature = Field(0.8, ge=0, le=2, allow_inf_nan=False, description=TEMPERATURE)
    repetition_penalty: float = Field(
        1.1,
        ge=MIN_REPETITION_PENALTY,
        le=2,
        allow_inf_nan=False,
        description="Penalty on repeated tokens; 1 is off, and then small models repeat themselves",
    )
    max_tokens: int | None = Field(  # type: ignore[assignment]  # optional here: the default depends on the sections
        None, ge=1, le=1_000_000, description="Maximum number of tokens for the song; default: enough for its lines"
    )


SONG_OPTIONS = tuple(SongFields.__annotations__)


def split_song_options(options: Mapping[str, Any]) -> tuple[SongFields, JsonObject]:
    """Return two sets of options: those that describe the song, and those for sampling its text."""
    song: SongFields = {
        "theme": options["theme"],
        "style": options["style"],
        "language": options["language"],
        "sections": options["sections"],
        "lines_per_section": options["lines_per_section"],
    }
    return song, {name: value for name, value in options.items() if name not in SONG_OPTIONS}
