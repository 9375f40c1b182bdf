"""An audio file as it is decoded, block by block, by libsndfile; what it is, and why another is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from backend.common.errors import Validation
from backend.tasks.stems.choices import CHANNELS_MOST, RATE_LEAST, RATE_MOST
from backend.tasks.stems.separator import Samples

BLOCK_VALUES = 1 << 18  # samples of all channels that are decoded at once: 1 MB
LOUDEST = 1e6  # times full scale; beyond that it is no sound, and squares overflow
_KINDS = "Send WAV, FLAC, OGG (Vorbis, Opus) or MP3."
_WHOLE = "Get the whole file again, or open it in an audio editor and save what is left of it."
_CLAIM = re.compile(r"^data : (\d+) \(should be", re.MULTILINE)
_STREAMED_BYTES = 0x7FFF0000  # what programs claim that write to a pipe, where the length is not known
_CUT = ("> file length", "lacks an end-of-stream bit")
OnFrames = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """A file that was decoded to its end once: `frames` came, and `peak` is the loudest sample."""

    path: Path
    name: str
    rate: int
    channels: int
    frames: int
    peak: float

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.frames / self.rate

    def blocks(self) -> Iterator[Samples]:
        """The sound as [channel, frames] float32."""
        with soundfile.SoundFile(self.path) as file:
            yield from _blocks(file)


def measure(path: Path, name: str, on_frames: OnFrames) -> Source:
    """Decodes a file to its end and keeps nothing of it. Raises Validation for what is no whole sound."""
    if path.stat().st_size == 0:
        raise Validation(f"{name} is empty.", _KINDS)
    try:
        with soundfile.SoundFile(path) as file:
            _check_shape(file, name)
            frames, peak = 0, 0.0
            for block in _blocks(file):
                highest = float(np.abs(block).max())
                if not highest <= LOUDEST:
                    raise Validation(
                        f"{name} has samples that are no sound (none, infinite, or over a million times full scale) "
                        f"between {frames / file.samplerate:.2f} and "
                        f"{(frames + block.shape[1]) / file.samplerate:.2f} s.",
                        "Export it again from the program that made it.",
                    )
                peak = max(peak, highest)
                frames += block.shape[1]
                on_frames(frames, max(frames, file.frames))
            _check_whole(file, frames, name)
            return Source(path, name, file.samplerate, file.channels, frames, peak)
    except soundfile.LibsndfileError as error:
        raise Validation(f"{name} cannot be read as sound: {error.error_string}", _KINDS) from None


def _blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    frames = max(1, BLOCK_VALUES // file.channels)
    while len(block := file.read(frames, dtype="float32", always_2d=True)):
        yield np.ascontiguousarray(block.T)


def _check_shape(file: soundfile.SoundFile, name: str) -> None:
    if file.channels > CHANNELS_MOST:
        raise Validation(
            f"{name} has {file.channels} channels, and at most {CHANNELS_MOST} are separated.", "Mix it down first."
        )
    if not RATE_LEAST <= file.samplerate <= RATE_MOST:
        raise Validation(
            f"{name} has {file.samplerate} samples a second; {RATE_LEAST} to {RATE_MOST} are separated.",
            "Resample it first.",
        )


def _check_whole(file: soundfile.SoundFile, frames: int, name: str) -> None:
    """libsndfile's log tells where a file ends before its header says, and a decoder that gives less tells it too."""
    if not frames:
        raise Validation(f"{name} has no sound in it.", "Send a file with at least one sample.")
    claim = _CLAIM.search(file.extra_info)
    claims_more = claim is not None and int(claim[1]) < _STREAMED_BYTES
    if claims_more or frames < file.frames or any(words in file.extra_info for words in _CUT):
        raise Validation(f"{name} is cut short: it ends after {frames / file.samplerate:.2f} s.", _WHOLE)
