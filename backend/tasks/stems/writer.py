"""The files of the stems, written side by side so that they add up to the sound that they were made of."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import soundfile
from numpy.typing import NDArray

from backend.tasks.audio.files.tags import Tags
from backend.tasks.stems.choices import Format
from backend.tasks.stems.separator import Samples

FULL_SCALE = 1 << 23  # of 24 bits
_RIFF_MOST_BYTES = 4_000_000_000  # its lengths have 32 bits; RF64 is the same for longer ones


class StemFiles:
    """Open files, one a stem: written block by block, whole when the block of `with` has ended."""

    def __init__(
        self, paths: list[Path], form: Format, rate: int, channels: int, frames: int, tags: list[Tags]
    ) -> None:
        container = form.container
        if container == "WAV" and frames * channels * form.bytes_a_sample > _RIFF_MOST_BYTES:
            container = "RF64"
        self.clipped = 0
        self._whole_numbers = form.subtype != "FLOAT"
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._files = [
                opening.enter_context(soundfile.SoundFile(path, "w", rate, channels, form.subtype, format=container))
                for path in paths
            ]
            for file, said in zip(self._files, tags, strict=True):
                said.put_into(file)
            self._stack = opening.pop_all()

    def __enter__(self) -> StemFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(self, sound: Samples, stems: Samples) -> None:
        """A block [channel, frames] and its stems [stem, channel, frames].

        What the stems miss of the sound is shared evenly among them (mixture consistency: Wisdom et al.,
        "Differentiable consistency constraints for improved deep speech enhancement", ICASSP 2019). In whole numbers
        the last stem is what the others leave, so that the sum is exact.
        """
        stems = stems + (sound - stems.sum(0)) / np.float32(len(stems))
        if not self._whole_numbers:
            for file, stem in zip(self._files, stems, strict=True):
                file.write(stem.T)
            return
        left = _whole(sound)
        for file, stem in zip(self._files[:-1], stems[:-1], strict=True):
            self._write(file, part := _whole(stem))
            left = left - self._clip(part)
        self._write(self._files[-1], left)

    def _write(self, file: soundfile.SoundFile, samples: NDArray[np.int64]) -> None:
        inside = self._clip(samples)
        self.clipped += int((inside != samples).sum())
        file.write((inside << 8).astype(np.int32).T)

    @staticmethod
    def _clip(samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(samples, -FULL_SCALE, FULL_SCALE - 1)


def _whole(samples: Samples) -> NDArray[np.int64]:
    return np.rint(samples.astype(np.float64) * FULL_SCALE).astype(np.int64)
