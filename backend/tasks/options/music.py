"""The options of music: what a tune shall be. `any` leaves it to the rules of `backend/tasks/music/controls.py`."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from backend.common.config.strict_model import StrictModel
from backend.common.seeds import SEEDS
from backend.tasks.music.choices import BACKINGS, FASTEST_BPM, INSTRUMENTS, SLOWEST_BPM, USUAL_FORMATS
from backend.tasks.music.controls import ANY
from backend.tasks.music.length import MAX_SECONDS, written
from backend.tasks.music.plan import FORMS, MAX_BARS, MAX_VARIATIONS, MODES, TONICS, Plan

ABC_LIMIT = 5000
Format = Literal["wav", "flac", "mp3", "ogg", "midi", "abc", "svg"]
METERS = sorted({written(meter) for meters in FORMS.values() for meter in meters})


def _choice(names: Any, description: str) -> Any:
    return Field(ANY, description=description, json_schema_extra={"enum": [ANY, *names]})


class MusicOptions(StrictModel):
    """A tune, or up to sixteen variations of one wish."""

    form: str = _choice(FORMS, "The kind of tune; the usual tempo and rhythm follow from it")
    meter: str = _choice(METERS, "Beats in a bar; each form has its own")
    key: str = _choice(TONICS, "The note that the tune comes home to")
    mode: str = _choice(MODES, "Major sounds bright, minor and dorian darker, mixolydian like pipes")
    bars: int | None = Field(None, ge=1, le=MAX_BARS, description="Length in bars as heard, repeats played; or seconds")
    seconds: float | None = Field(
        None, gt=0, le=MAX_SECONDS, allow_inf_nan=False, description="Length of the audio, exactly; or bars"
    )
    tempo_bpm: float | None = Field(
        None,
        ge=SLOWEST_BPM,
        le=FASTEST_BPM,
        allow_inf_nan=False,
        description="Beats a minute: dotted quarters in 6/8 and 9/8, else quarters",
    )
    instrument: str = _choice(INSTRUMENTS, "What plays the melody")
    backing: str = _choice(BACKINGS, "What accompanies it, by rule: chords, a bass, both (full) or nothing")
    variations: int = Field(1, ge=1, le=MAX_VARIATIONS, description="Tunes to make at once, each with its own seed")
    abc: str | None = Field(
        None, max_length=ABC_LIMIT, description="An opening phrase in ABC notation, which the tune goes on from"
    )
    formats: list[Format] | None = Field(
        None,
        min_length=1,
        description=f"Kinds of files; default: {', '.join(USUAL_FORMATS)}",
        json_schema_extra={"uniqueItems": True},  # so that a form shows boxes
    )
    seed: int | None = Field(None, ge=0, le=SEEDS - 1, description="The same seed gives the same tune")
    temperature: float = Field(
        Plan.temperature, ge=0, le=2, allow_inf_nan=False, description="Higher is bolder, 0 is the likeliest"
    )
    top_p: float = Field(
        Plan.top_p, gt=0, le=1, allow_inf_nan=False, description="Share of probability to draw notes from"
    )

    @field_validator("form", "meter", "key", "mode", "instrument", "backing")
    @classmethod
    def _one_of(cls, value: str, info: ValidationInfo) -> str:
        """The name as it is listed, however it was spelled. Raises ValueError with the nearest and all of them."""
        extra: Any = cls.model_fields[str(info.field_name)].json_schema_extra
        names = {_folded(name): name for name in extra["enum"]}
        if found := names.get(_folded(value)):
            return str(found)
        near = difflib.get_close_matches(_folded(value), names, 1, 0.6)
        hint = f" (did you mean {names[near[0]]!r}?)" if near else ""
        raise ValueError(f"there is no {info.field_name} {value[:50]!r}{hint}; there are {', '.join(extra['enum'])}")

    @model_validator(mode="after")
    def _one_length(self) -> MusicOptions:
        if self.bars is not None and self.seconds is not None:
            raise ValueError("bars and seconds exclude each other: leave one out")
        return self


def _folded(name: str) -> str:
    return name.strip().casefold().replace("♯", "#").replace("♭", "b").replace("_", " ").replace("-", " ")
