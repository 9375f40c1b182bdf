"""The options of songs, made by models that make sound itself. What a model has not is refused by its name."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from backend.common.config.strict_model import StrictModel, to_validation_error
from backend.common.errors import ModelBroken, UnsupportedParameter, Validation
from backend.common.seeds import SEEDS
from backend.tasks.music.plan import MAX_VARIATIONS
from backend.tasks.songs.model_kinds import ALWAYS, SongKind

LYRICS_LIMIT, PROMPT_LIMIT = 20_000, 5_000
LONGEST_S = 1200.0


class SongOptions(StrictModel):
    """A song, or several variations of one wish. None is the model's own usual value."""

    lyrics: str | None = Field(
        None, max_length=LYRICS_LIMIT, description="Words to sing; lines such as [verse] and [chorus] name the sections"
    )
    language: str | None = Field(
        None, pattern=r"^[a-z]{2,3}$", description="Of the lyrics, as its code: en, de, zh, ja …; default: en"
    )
    negative_prompt: str | None = Field(
        None, max_length=PROMPT_LIMIT, description="What it shall not sound like; needs a guidance_scale above 1"
    )
    seconds: float | None = Field(
        None, gt=0, le=LONGEST_S, allow_inf_nan=False, description="Length of the audio, exact to the sample"
    )
    tempo_bpm: int | None = Field(None, ge=30, le=300, description="Beats a minute, as a wish")
    key: str | None = Field(None, max_length=30, description="Such as C major or F# minor, as a wish")
    meter: Literal["2/4", "3/4", "4/4", "6/8"] | None = Field(None, description="As a wish")
    steps: int | None = Field(None, ge=1, le=1000, description="Steps of denoising: more take longer")
    guidance_scale: float | None = Field(
        None, ge=0, le=50, allow_inf_nan=False, description="How closely it follows the words; 1 is no guidance"
    )
    temperature: float | None = Field(
        None, ge=0, le=2, allow_inf_nan=False, description="Higher is bolder, 0 is the likeliest"
    )
    top_k: int | None = Field(None, ge=0, le=100_000, description="Number of likeliest codes to draw from; 0 is all")
    top_p: float | None = Field(
        None, gt=0, le=1, allow_inf_nan=False, description="Share of probability to draw codes from"
    )
    variations: int = Field(1, ge=1, le=MAX_VARIATIONS, description="Songs to make, with seeds that follow each other")
    seed: int | None = Field(None, ge=0, le=SEEDS - 1, description="The same seed gives the same song")
    formats: Annotated[list[Literal["wav", "flac", "mp3", "ogg"]], Field(min_length=1)] | None = Field(
        None, description="Kinds of files; default: wav", json_schema_extra={"uniqueItems": True}
    )


def song_options(kind: SongKind, prompt: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a song with what the kind takes for them. Raises Validation, UnsupportedParameter, ModelBroken."""
    check_usual(kind)
    try:
        given = SongOptions.model_validate(dict(options)).model_dump()
    except ValidationError as error:
        errors = [{**item, "loc": ("options", *item["loc"])} for item in error.errors()]
        raise to_validation_error(errors, SongOptions.model_fields) from error
    _check_taken(kind, given)
    _check_words(prompt, given)
    whole = {**given, **{name: kind.defaults[name] for name in kind.defaults if given[name] is None}}
    _check_length(kind, whole["seconds"])
    if whole["negative_prompt"] and not (whole["guidance_scale"] or 0) > 1:
        raise Validation(
            "options.negative_prompt has an effect with guidance alone, and guidance_scale is "
            f"{whole['guidance_scale']:g}.",
            "Set options.guidance_scale above 1, or leave negative_prompt out.",
            fields=["options.negative_prompt"],
        )
    return whole


def check_usual(kind: SongKind) -> None:
    """Raises ModelBroken if what a model takes by itself, as its folder or its adapter says, can be no song's."""
    try:
        usual = SongOptions.model_validate(dict(kind.defaults))
    except ValidationError as error:
        refused = to_validation_error(error.errors(), SongOptions.model_fields)
        raise ModelBroken(
            f"What {kind.title} says of itself can be no song's: {refused.detail}",
            "Correct the adapter's defaults, or fetch the whole folder again from its source.",
        ) from None
    if kind.longest_s and (usual.seconds or 0) > kind.longest_s:
        raise ModelBroken(
            f"What {kind.title} says of itself can be no song's: {usual.seconds:g} s unless asked, and at most "
            f"{kind.longest_s:g}.",
            "Correct the adapter's defaults, or fetch the whole folder again from its source.",
        )


def song_schema(kind: SongKind) -> dict[str, Any]:
    """The JSON Schema of what a kind of model takes, with its own defaults and limits."""
    schema = copy.deepcopy(_whole_schema())
    schema["properties"] = {name: facts for name, facts in schema["properties"].items() if name in kind.options}
    for name, value in kind.defaults.items():
        schema["properties"][name]["default"] = value
    if kind.longest_s:
        schema["properties"]["seconds"]["anyOf"][0]["maximum"] = kind.longest_s
    return schema


@cache
def _whole_schema() -> dict[str, Any]:
    return SongOptions.model_json_schema()


def _check_taken(kind: SongKind, given: Mapping[str, Any]) -> None:
    names = [name for name in SongOptions.model_fields if name not in kind.options]
    ignored = [name for name in names if given[name] != SongOptions.model_fields[name].default]
    if not ignored:
        return
    reasons = [f": {kind.lacks[name]}" for name in ignored if name in kind.lacks]
    raise UnsupportedParameter(
        f"{', '.join(ignored)}: {kind.title} does not take that{''.join(reasons)}.",
        f"Leave it out; beside a prompt it takes {', '.join(sorted(kind.takes | ALWAYS))}.",
        fields=[f"options.{name}" for name in ignored],
    )


def _check_words(prompt: str | None, given: Mapping[str, Any]) -> None:
    if prompt and len(prompt) > PROMPT_LIMIT:
        raise Validation(
            f"prompt: the description has {len(prompt)} characters, and at most {PROMPT_LIMIT} are read.",
            "Say it in fewer words; words to sing go into options.lyrics.",
            fields=["prompt"],
        )
    if not (prompt or "").strip() and not (given["lyrics"] or "").strip():
        raise Validation(
            "prompt: a song needs a description of how it shall sound.",
            'Send one, such as "slow folk song, fiddle and a warm female voice".',
            fields=["prompt"],
        )


def _check_length(kind: SongKind, seconds: float) -> None:
    if kind.longest_s and seconds > kind.longest_s:
        most = math.floor(kind.longest_s * 100) / 100
        raise Validation(
            f"options.seconds: {kind.title} makes at most {most:g} s, and {seconds:g} were asked for.",
            f"Ask for {most:g} s or less.",
            fields=["options.seconds"],
        )
