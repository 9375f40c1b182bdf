"""A writer of the same audio to several files at once, block by block, with tags. Needs NumPy and soundfile."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import soundfile
from numpy.typing import NDArray

from backend.tasks.audio.files.kinds import KINDS
from backend.tasks.audio.files.tags import Tags

_WRITE_FRAMES = 32_768  # frames per write, since the Vorbis encoder puts its input on the stack


class SoundFiles:
    """Audio files that are open for writing, to be used in a `with` block. They are complete when it ends normally."""

    def __init__(self, targets: Sequence[tuple[Path, str]], rate: int, channels: int, tags: Tags) -> None:
        """Open the files. `targets` are paths with format names. Raises soundfile.SoundFileError."""
        self._mp3 = [path for path, name in targets if name == "mp3"]
        self._tags = tags
        with ExitStack() as opening:
            self._files = [opening.enter_context(_open(path, name, rate, channels, tags)) for path, name in targets]
            self._stack = opening.pop_all()

    def __enter__(self) -> SoundFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is None:
            for path in self._mp3:
                _prepend(path, self._tags.as_id3())

    def write(self, block: NDArray[np.float32]) -> None:
        """Write a block [channels, frames]. Samples are clipped to -1 … 1."""
        pcm = np.rint(np.clip(block.T, -1.0, 1.0) * 32767).astype(np.int16)
        for start in range(0, len(pcm), _WRITE_FRAMES):
            piece = pcm[start : start + _WRITE_FRAMES]
            for file in self._files:  # MP3 gets floats: libsndfile 1.2.2 encodes stereo 16-bit samples as noise
                file.write(piece if file.subtype == "PCM_16" else piece.astype(np.float32) / 32767)


def _open(path: Path, name: str, rate: int, channels: int, tags: Tags) -> soundfile.SoundFile:
    kind, encoder_options = KINDS[name], {}
    if kind.compression is not None:  # needs soundfile 0.13; a user's own environment may have an older version
        encoder_options = {
            "compression_level": kind.compression,
            **({"bitrate_mode": "VARIABLE"} if name == "mp3" else {}),
        }
    file = soundfile.SoundFile(path, "w", rate, channels, kind.subtype, format=kind.container, **encoder_options)
    if name != "mp3":
        tags.write_to(file)
    return file


def _prepend(path: Path, prefix: bytes) -> None:
    """Insert bytes at the start of a file."""
    tagged = path.with_name(path.name + ".tagged")
    try:
        with tagged.open("wb") as out, path.open("rb") as sound:
            out.write(prefix)
            shutil.copyfileobj(sound, out, 1 << 20)
        tagged.replace(path)
    finally:
        tagged.unlink(missing_ok=True)
