"""The options of lyrics: the song that is wished for, beside how its text is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from backend.tasks.lyrics.sections import KINDS, LINES, MOST_LINES, MOST_SECTIONS, USUAL
from backend.tasks.options.text import Sampling


def _kinds(value: Any) -> Any:
    """The kinds as they are listed, however they were spelled. Raises ValueError for one that there is not."""
    if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
        return value
    folded = [kind.strip().casefold().replace("_", "-").replace(" ", "-") for kind in value]
    if unknown := [given[:50] for given, kind in zip(value, folded, strict=True) if kind not in KINDS]:
        raise ValueError(f"there is no section {unknown[0]!r}; there are {', '.join(KINDS)}")
    return folded


def _words(limit: int) -> StringConstraints:
    return StringConstraints(strip_whitespace=True, min_length=1, max_length=limit)


class LyricsOptions(Sampling):
    """A song in words, written section by section."""

    theme: Annotated[str, _words(500)] | None = Field(None, description="What it is about")
    style: Annotated[str, _words(200)] | None = Field(None, description="Such as folk ballad, blues or sea shanty")
    language: Annotated[str, _words(50)] = Field(
        "English", description="By its name; how well depends on the model, and the smallest know English alone"
    )
    sections: Annotated[list[str], BeforeValidator(_kinds), Field(min_length=1, max_length=MOST_SECTIONS)] = Field(
        list(USUAL), description=f"In their order, any of {', '.join(KINDS)}; a chorus has the same words each time"
    )
    lines_per_section: int = Field(LINES, ge=1, le=MOST_LINES, description="Lines of each section")
    temperature: float = Field(0.8, ge=0, le=2, allow_inf_nan=False, description="0 always takes the likeliest token")
    repetition_penalty: float = Field(
        1.1,
        gt=0,
        le=2,
        allow_inf_nan=False,
        description="Above 1 discourages repetition; at 1 small models go in circles",
    )
    max_tokens: int | None = Field(  # type: ignore[assignment]  # a number there, and here one that follows
        None, ge=1, le=1_000_000, description="Most tokens for the whole song; default: enough for its lines"
    )


SONG = ("theme", "style", "language", "sections", "lines_per_section")


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The song, and the options with which its text is sampled."""
    return {name: options[name] for name in SONG}, {n: value for n, value in options.items() if n not in SONG}
