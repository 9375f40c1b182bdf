"""Export of a score to all file formats, for jobs and the command line.

Each file is written under a temporary name and renamed when it is complete, so a folder never contains partial files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backend.tasks.audio.files.kinds import KINDS
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import abc_writer, audio, midi, sheet
from backend.tasks.music.choices import FORMATS
from backend.tasks.music.score import Score

# The progress callback: takes finished and total audio blocks (1 and 1 without audio), returns True to cancel.
OnProgress = Callable[[int, int], bool]

_PARTIAL = ".partial"


def possible_formats() -> tuple[str, ...]:
    """Return the formats that can be written: all of `FORMATS`, without svg if verovio is not installed."""
    return tuple(name for name in FORMATS if name != "svg" or sheet.is_available())


def render(
    score: Score,
    folder: Path,
    formats: Sequence[str],
    seconds: float | None = None,
    on_progress: OnProgress = lambda done, total: False,
    name: str = "tune",
) -> list[tuple[str, str]]:
    """Write one file per format and return (file name, media type) in the order of `formats`.

    `seconds` is optional: the exact duration of the audio, including the ring-out. Default: the music plus a ring-out
    of two seconds. After a cancel no file is left. Raises Cancelled, OSError (soundfile.SoundFileError for audio), and
    ValueError for an unavailable format or for `seconds` shorter than the music.
    """
    unknown = set(formats) - set(possible_formats())
    if unknown:
        raise ValueError(f"unavailable formats: {', '.join(sorted(unknown))}")
    targets = {format_name: folder / f"{name}.{FORMATS[format_name][0]}" for format_name in formats}
    partial = {format_name: target.with_name(target.name + _PARTIAL) for format_name, target in targets.items()}
    try:
        audio_targets = [(partial[kind], kind) for kind in targets if kind in KINDS]
        if audio_targets:
            audio.write_audio(score, audio_targets, seconds, on_progress)
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
