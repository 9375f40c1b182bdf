"""One sound into several files at once, block by block, each with its tags. In children, with NumPy and soundfile."""

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

_PIECE = 32_768  # frames: Vorbis' encoder keeps what it is given on the stack


class SoundFiles:
    """Files that are open for writing, whole when the block of `with` has ended without an exception."""

    def __init__(self, targets: Sequence[tuple[Path, str]], rate: int, channels: int, tags: Tags) -> None:
        """`targets` are paths and names of kinds. Raises soundfile.SoundFileError, which gives no reason."""
        self._mp3 = [path for path, name in targets if name == "mp3"]
        self._tags = tags
        with ExitStack() as opening:
            self._files = [opening.enter_context(_opened(path, name, rate, channels, tags)) for path, name in targets]
            self._stack = opening.pop_all()

    def __enter__(self) -> SoundFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is None:
            for path in self._mp3:
                _put_before(path, self._tags.as_id3())

    def write(self, block: NDArray[np.float32]) -> None:
        """A block [channels, frames]; what lies beyond -1 and 1 is cut off."""
        pcm = np.rint(np.clip(block.T, -1.0, 1.0) * 32767).astype(np.int16)
        for start in range(0, len(pcm), _PIECE):
            piece = pcm[start : start + _PIECE]
            for file in self._files:  # libsndfile 1.2.2 makes noise of 16 bits in stereo for MP3, and not of floats
                file.write(piece if file.subtype == "PCM_16" else piece.astype(np.float32) / 32767)


def _opened(path: Path, name: str, rate: int, channels: int, tags: Tags) -> soundfile.SoundFile:
    kind, how = KINDS[name], {}
    if kind.compression is not None:  # soundfile knows it since 0.13, and somebody's own environment may have less
        how = {"compression_level": kind.compression, **({"bitrate_mode": "VARIABLE"} if name == "mp3" else {})}
    file = soundfile.SoundFile(path, "w", rate, channels, kind.subtype, format=kind.container, **how)
    if name != "mp3":
        tags.put_into(file)
    return file


def _put_before(path: Path, start: bytes) -> None:
    """Puts bytes before a file's first one."""
    whole = path.with_name(path.name + ".tagged")
    try:
        with whole.open("wb") as out, path.open("rb") as sound:
            out.write(start)
            shutil.copyfileobj(sound, out, 1 << 20)
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)
