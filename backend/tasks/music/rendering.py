"""From a score to finished files: the one way in for jobs and the command line.

A file is written under another name and renamed when whole, so a folder never holds half a file under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backend.tasks.audio.files.kinds import KINDS
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import abc_writer, audio, midi, sheet
from backend.tasks.music.choices import FORMATS
from backend.tasks.music.score import Score

# Called with audio blocks done and in all (1 and 1 when no audio was asked for); True means: stop now.
OnProgress = Callable[[int, int], bool]

_PARTIAL = ".partial"


def possible_formats() -> tuple[str, ...]:
    """The formats that can be written here: all of `FORMATS`, but for the sheet where its library is missing."""
    return tuple(name for name in FORMATS if name != "svg" or sheet.available())


def render(
    score: Score,
    folder: Path,
    formats: Sequence[str],
    seconds: float | None = None,
    on_progress: OnProgress = lambda done, total: False,
    name: str = "tune",
) -> list[tuple[str, str]]:
    """Writes the files of `name` that `formats` asks for; returns (file name, media type) in that order.

    With `seconds` the audio lasts exactly that long (the ring-out fades inside it), else the music plus its ring-out.
    Stopped, it leaves nothing behind. Raises Stopped, OSError (soundfile.SoundFileError for audio), and
    ValueError for a format that is not in `possible_formats` or for `seconds` shorter than the music.
    """
    unknown = set(formats) - set(possible_formats())
    if unknown:
        raise ValueError(f"no such format here: {', '.join(sorted(unknown))}")
    targets = {format_name: folder / f"{name}.{FORMATS[format_name][0]}" for format_name in formats}
    partial = {format_name: target.with_name(target.name + _PARTIAL) for format_name, target in targets.items()}
    try:
        heard = [(partial[kind], kind) for kind in targets if kind in KINDS]
        if heard:
            audio.write(score, heard, seconds, on_progress)
        elif on_progress(1, 1):
            raise Cancelled
        if "midi" in targets:
            partial["midi"].write_bytes(midi.to_bytes(score))
        if "abc" in targets:
            partial["abc"].write_text(abc_writer.to_text(score), encoding="utf-8", newline="\n")
        if "svg" in targets:
            partial["svg"].write_text(sheet.to_svg(score), encoding="utf-8", newline="\n")
        for format_name, target in targets.items():
            partial[format_name].replace(target)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
    return [(target.name, FORMATS[format_name][1]) for format_name, target in targets.items()]
