"""An input audio file: validation and block-wise decoding with libsndfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from backend.common.errors import Validation
from backend.tasks.stems.choices import MAX_CHANNELS, MAX_RATE, MIN_RATE
from backend.tasks.stems.separator import Samples

BLOCK_VALUES = 1 << 18  # samples of all channels per decoded block: 1 MB
MAX_AMPLITUDE = 1e6  # times full scale; the squares of larger samples overflow
_FORMATS_REMEDY = "Send WAV, FLAC, OGG (Vorbis, Opus) or MP3."
_TRUNCATED_REMEDY = "Get a complete copy, or open the file in an audio editor and save the part that is there."
_CLAIMED_BYTES = re.compile(r"^data : (\d+) \(should be", re.MULTILINE)
_STREAMED_BYTES = 0x7FFF0000  # the length that programs write into the header when they write to a pipe
_TRUNCATION_NOTES = ("> file length", "lacks an end-of-stream bit")
OnFrames = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """A file that decodes completely. `rate` is in Hz, `frames` the decoded length, `peak` the largest amplitude."""

    path: Path
    name: str
    rate: int
    channels: int
    frames: int
    peak: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.frames / self.rate

    def blocks(self) -> Iterator[Samples]:
        """Yield the audio in blocks [channel, frame] of float32."""
        with soundfile.SoundFile(self.path) as file:
            yield from _blocks(file)


def measure(path: Path, name: str, on_frames: OnFrames) -> Source:
    """Decode a file to its end to measure it. Raises Validation if it is not complete, valid audio.

    `on_frames` is the progress callback: it takes the decoded and the total number of frames.
    """
    if path.stat().st_size == 0:
        raise Validation(f"{name} is empty.", _FORMATS_REMEDY)
    try:
        with soundfile.SoundFile(path) as file:
            _check_shape(file, name)
            frames, peak = 0, 0.0
            for block in _blocks(file):
                highest = float(np.abs(block).max())
                if not highest <= MAX_AMPLITUDE:
                    raise Validation(
                        f"{name} has invalid samples (NaN, infinite, or over a million times full scale) "
                        f"between {frames / file.samplerate:.2f} and "
                        f"{(frames + block.shape[1]) / file.samplerate:.2f} s.",
                        "Export the file again from its audio program.",
                    )
                peak = max(peak, highest)
                frames += block.shape[1]
                on_frames(frames, max(frames, file.frames))
            _check_complete(file, frames, name)
            return Source(path, name, file.samplerate, file.channels, frames, peak)
    except soundfile.LibsndfileError as error:
        raise Validation(f"{name} cannot be decoded as audio: {error.error_string}", _FORMATS_REMEDY) from None


def _blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    frames = max(1, BLOCK_VALUES // file.channels)
    while len(block := file.read(frames, dtype="float32", always_2d=True)):
        yield np.ascontiguousarray(block.T)


def _check_shape(file: soundfile.SoundFile, name: str) -> None:
    if file.channels > MAX_CHANNELS:
        raise Validation(
            f"{name} has {file.channels} channels; the limit is {MAX_CHANNELS}.", "Mix it down to stereo first."
        )
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise Validation(
            f"{name} has a sample rate of {file.samplerate} Hz; {MIN_RATE} to {MAX_RATE} Hz are supported.",
            "Resample it to 44100 Hz first.",
        )


def _check_complete(file: soundfile.SoundFile, frames: int, name: str) -> None:
    """Raise Validation for a truncated file: its header, libsndfile's log or the number of frames shows it."""
    if not frames:
        raise Validation(f"{name} contains no audio.", "Send a file with at least one sample.")
    claimed = _CLAIMED_BYTES.search(file.extra_info)
    claims_more = claimed is not None and int(claimed[1]) < _STREAMED_BYTES
    if claims_more or frames < file.frames or any(note in file.extra_info for note in _TRUNCATION_NOTES):
        raise Validation(f"{name} is truncated: it ends after {frames / file.samplerate:.2f} s.", _TRUNCATED_REMEDY)
