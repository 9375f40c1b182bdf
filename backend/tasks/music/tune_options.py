"""The options of a tune as typed fields. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

ANY = "any"


@dataclass(frozen=True)
class TuneOptions:
    """The validated options that determine a plan (see `backend/tasks/options/music.py`). ANY means: choose a value."""

    form: str
    meter: str
    key: str
    mode: str
    bars: int | None
    seconds: float | None
    tempo_bpm: float | None
    instrument: str
    backing: str
    variations: int
    abc: str | None
    temperature: float
    top_p: float

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> TuneOptions:
        """Return the fields of a request's options; other options, such as `formats`, are ignored."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})
