"""The options of songs, for models that generate audio. An option that the model lacks is rejected by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from backend.common.config.strict_model import StrictModel, to_validation_error
from backend.common.errors import ModelBroken, UnsupportedParameter, Validation
from backend.common.seeds import SEEDS
from backend.common.types import JsonObject
from backend.tasks.music.plan import MAX_VARIATIONS
from backend.tasks.options.sampling_numbers import limit_share, limit_temperature
from backend.tasks.songs.model_kinds import COMMON_OPTIONS, SongKind

LYRICS_LIMIT, PROMPT_LIMIT = 20_000, 5_000
MAX_SECONDS = 1200.0
MODEL_DEFAULT = "; default: the model's"
_DEFAULTS_REMEDY = "Correct the adapter's defaults, or download the model's folder again."


class SongOptions(StrictModel):
    """A song, or several variations with the same options. None means the model's default."""

    lyrics: str | None = Field(
        None,
        max_length=LYRICS_LIMIT,
        description="Words to sing; lines such as [verse] and [chorus] name the sections; default: none",
    )
    language: str | None = Field(
        None, pattern=r"^[a-z]{2,3}$", description="Language code of the lyrics, such as en, de, zh, ja; default: en"
    )
    negative_prompt: str | None = Field(
        None,
        max_length=PROMPT_LIMIT,
        description="What the song should not sound like; needs guidance_scale above 1; default: none",
    )
    seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Length of the audio in seconds, exact to the sample" + MODEL_DEFAULT,
    )
    tempo_bpm: int | None = Field(
        None, ge=30, le=300, description="Tempo in beats per minute, as a hint to the model; default: none"
    )
    key: str | None = Field(
        None, max_length=30, description="Key, such as C major or F# minor, as a hint to the model; default: none"
    )
    meter: Literal["2/4", "3/4", "4/4", "6/8"] | None = Field(
        None, description="Time signature, as a hint to the model; default: none"
    )
    steps: int | None = Field(
        None, ge=1, le=1000, description="Number of denoising steps; more steps take longer" + MODEL_DEFAULT
    )
    guidance_scale: float | None = Field(
        None,
        ge=0,
        le=50,
        allow_inf_nan=False,
        description="Classifier-free guidance scale: how closely to follow the prompt; 1 is off" + MODEL_DEFAULT,
    )
    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Sampling temperature; 0 always picks the most likely code, higher values vary more"
        + MODEL_DEFAULT,
    )
    top_k: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="Sample from this many of the most likely codes; 0 is all" + MODEL_DEFAULT,
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Nucleus sampling: sample from the most likely codes whose probabilities sum to this"
        + MODEL_DEFAULT,
    )
    variations: int = Field(
        1, ge=1, le=MAX_VARIATIONS, description="Number of songs to generate, with consecutive seeds"
    )
    seed: int | None = Field(
        None, ge=0, le=SEEDS - 1, description="Random seed; the same seed gives the same song; default: random"
    )
    formats: Annotated[list[Literal["wav", "flac", "mp3", "ogg"]], Field(min_length=1)] | None = Field(
        None, description="File formats to write (default: wav)", json_schema_extra={"uniqueItems": True}
    )

    @field_validator("temperature")
    @classmethod
    def _limit_temperature(cls, value: float | None) -> float | None:
        return None if value is None else limit_temperature(value)

    @field_validator("top_p")
    @classmethod
    def _limit_share(cls, value: float | None) -> float | None:
        return None if value is None else limit_share(value)


def song_options(kind: SongKind, prompt: str | None, options: Mapping[str, Any]) -> JsonObject:
    """Return all options of a song with the model's defaults. Raises Validation, UnsupportedParameter, ModelBroken."""
    check_defaults(kind)
    try:
        given = SongOptions.model_validate(dict(options)).model_dump()
    except ValidationError as error:
        errors = [{**item, "loc": ("options", *item["loc"])} for item in error.errors()]
        raise to_validation_error(errors, SongOptions.model_fields) from error
    _check_supported(kind, given)
    _check_prompt(prompt, given)
    merged = {**given, **{name: kind.defaults[name] for name in kind.defaults if given[name] is None}}
    _check_length(kind, merged["seconds"])
    if merged["negative_prompt"] and not (merged["guidance_scale"] or 0) > 1:
        raise Validation(
            f"options.negative_prompt needs guidance, and guidance_scale is {merged['guidance_scale']:g}.",
            "Set options.guidance_scale above 1, or omit negative_prompt.",
            fields=["options.negative_prompt"],
        )
    return merged


def check_defaults(kind: SongKind) -> None:
    """Check the default options from a model's folder or adapter. Raises ModelBroken if they are out of range."""
    try:
        defaults = SongOptions.model_validate(dict(kind.defaults))
    except ValidationError as error:
        problem = to_validation_error(error.errors(), SongOptions.model_fields)
        raise ModelBroken(f"The defaults of {kind.title} are invalid: {problem.detail}", _DEFAULTS_REMEDY) from None
    if kind.longest_s and (defaults.seconds or 0) > kind.longest_s:
        raise ModelBroken(
            f"The defaults of {kind.title} are invalid: the default length is {defaults.seconds:g} s, the maximum "
            f"{kind.longest_s:g} s.",
            _DEFAULTS_REMEDY,
        )


def song_schema(kind: SongKind) -> JsonObject:
    """Return the JSON Schema of the options that a song model takes, with its own defaults and limits."""
    schema = copy.deepcopy(_full_schema())
    schema["properties"] = {name: field for name, field in schema["properties"].items() if name in kind.options}
    for name, value in kind.defaults.items():
        field = schema["properties"][name]
        field["default"], field["description"] = value, field["description"].replace(MODEL_DEFAULT, "")
    if kind.longest_s:
        schema["properties"]["seconds"]["anyOf"][0]["maximum"] = kind.longest_s
    return schema


@cache
def _full_schema() -> JsonObject:
    return SongOptions.model_json_schema()


def _check_supported(kind: SongKind, given: Mapping[str, Any]) -> None:
    unsupported = [
        name
        for name, field in SongOptions.model_fields.items()
        if name not in kind.options and given[name] != field.default
    ]
    if not unsupported:
        return
    reasons = [f": {kind.lacks[name]}" for name in unsupported if name in kind.lacks]
    raise UnsupportedParameter(
        f"{', '.join(unsupported)}: {kind.title} does not take that{''.join(reasons)}.",
        f"Omit it; besides a prompt it takes {', '.join(sorted(kind.takes | COMMON_OPTIONS))}.",
        fields=[f"options.{name}" for name in unsupported],
    )


def _check_prompt(prompt: str | None, given: Mapping[str, Any]) -> None:
    if prompt and len(prompt) > PROMPT_LIMIT:
        raise Validation(
            f"prompt: {len(prompt)} characters; the limit is {PROMPT_LIMIT}.",
            "Shorten the description; send words to sing as options.lyrics.",
            fields=["prompt"],
        )
    if not (prompt or "").strip() and not (given["lyrics"] or "").strip():
        raise Validation(
            "prompt: a song needs a description of its sound.",
            'Send a prompt, such as "slow folk song, fiddle and a warm female voice".',
            fields=["prompt"],
        )


def _check_length(kind: SongKind, seconds: float) -> None:
    if kind.longest_s and seconds > kind.longest_s:
        limit_s = math.floor(kind.longest_s * 100) / 100
        raise Validation(
            f"options.seconds: {kind.title} generates at most {limit_s:g} s; {seconds:g} s were requested.",
            f"Set options.seconds to {limit_s:g} or less.",
            fields=["options.seconds"],
        )
