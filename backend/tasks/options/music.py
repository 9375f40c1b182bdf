"""The options of the tune generator. For `any`, `backend/tasks/music/controls.py` chooses a value."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.seeds import SEEDS
from backend.tasks.music.choices import BACKINGS, DEFAULT_FORMATS, INSTRUMENTS, MAX_BPM, MIN_BPM
from backend.tasks.music.length import DEFAULT_BARS, MAX_SECONDS, format_meter
from backend.tasks.music.plan import FORMS, MAX_BARS, MAX_VARIATIONS, MODES, TONICS, Plan
from backend.tasks.music.tune_options import ANY
from backend.tasks.options.sampling_numbers import Share, Temperature

ABC_LIMIT = 5000
Format = Literal["wav", "flac", "mp3", "ogg", "midi", "abc", "svg"]
METERS = sorted({format_meter(meter) for meters in FORMS.values() for meter in meters})


def _choice_field(names: Any, description: str) -> Any:
    return Field(ANY, description=description, json_schema_extra={"enum": [ANY, *names]})


class MusicOptions(StrictModel):
    """A tune, or up to sixteen variations with the same options."""

    form: str = _choice_field(FORMS, "Form of the tune; it sets the default tempo and rhythm")
    meter: str = _choice_field(METERS, "Time signature; each form has one or more")
    key: str = _choice_field(TONICS, "Tonic of the key")
    mode: str = _choice_field(
        MODES, "Mode of the key; major sounds bright, minor and dorian darker, mixolydian like pipes"
    )
    bars: int | None = Field(
        None,
        ge=1,
        le=MAX_BARS,
        description=f"Length in bars, repeats included; set bars or seconds; default: {DEFAULT_BARS}",
    )
    seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Length of the audio in seconds, exact; set seconds or bars; default: the length of the bars",
    )
    tempo_bpm: float | None = Field(
        None,
        ge=MIN_BPM,
        le=MAX_BPM,
        allow_inf_nan=False,
        description="Tempo in beats per minute: dotted quarters in 6/8 and 9/8, else quarters; default: the form's",
    )
    instrument: str = _choice_field(INSTRUMENTS, "Instrument of the melody")
    backing: str = _choice_field(BACKINGS, "Rule-based accompaniment: chords, bass, both (full) or none")
    variations: int = Field(
        1, ge=1, le=MAX_VARIATIONS, description="Number of tunes to generate, each with its own seed"
    )
    abc: str | None = Field(
        None, max_length=ABC_LIMIT, description="Opening phrase in ABC notation that the tune continues; default: none"
    )
    formats: list[Format] | None = Field(
        None,
        min_length=1,
        description=f"File formats to write (default: {', '.join(DEFAULT_FORMATS)})",
        json_schema_extra={"uniqueItems": True},  # forms show a checkbox for each format
    )
    seed: int | None = Field(
        None, ge=0, le=SEEDS - 1, description="Random seed; the same seed gives the same tune; default: random"
    )
    temperature: Temperature = Field(
        Plan.temperature,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Sampling temperature; 0 always picks the most likely note, higher values vary more",
    )
    top_p: Share = Field(
        Plan.top_p,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Nucleus sampling: sample from the most likely notes whose probabilities sum to this",
    )

    @field_validator("form", "meter", "key", "mode", "instrument", "backing")
    @classmethod
    def _one_of(cls, value: str, info: ValidationInfo) -> str:
        """Return the choice in its standard spelling. Raises ValueError with the closest match and all choices."""
        extra: Any = cls.model_fields[str(info.field_name)].json_schema_extra
        names = {_normalise(name): name for name in extra["enum"]}
        if found := names.get(_normalise(value)):
            return str(found)
        near = difflib.get_close_matches(_normalise(value), names, 1, 0.6)
        hint = f" (did you mean {names[near[0]]!r}?)" if near else ""
        raise ValueError(f"unknown {info.field_name} {value[:50]!r}{hint}; choose from {', '.join(extra['enum'])}")

    @model_validator(mode="after")
    def _one_length(self) -> MusicOptions:
        if self.bars is not None and self.seconds is not None:
            raise ValueError("bars and seconds are mutually exclusive: omit one of them")
        return self


def _normalise(name: str) -> str:
    return name.strip().casefold().replace("♯", "#").replace("♭", "b").replace("_", " ").replace("-", " ")
