"""A writer of stem files. The stems add up to the input exactly."""

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
_MAX_RIFF_BYTES = 4_000_000_000  # RIFF has 32-bit lengths; longer files are written as RF64


class StemFiles:
    """One open file per stem, to be used in a `with` block. `clipped` counts samples that exceeded full scale."""

    def __init__(
        self, paths: list[Path], file_format: Format, rate: int, channels: int, frames: int, tags: list[Tags]
    ) -> None:
        container = file_format.container
        if container == "WAV" and frames * channels * file_format.bytes_per_sample > _MAX_RIFF_BYTES:
            container = "RF64"
        self.clipped = 0
        self._is_integer = file_format.subtype != "FLOAT"
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._files = [
                opening.enter_context(
                    soundfile.SoundFile(path, "w", rate, channels, file_format.subtype, format=container)
                )
                for path in paths
            ]
            for file, file_tags in zip(self._files, tags, strict=True):
                file_tags.write_to(file)
            self._stack = opening.pop_all()

    def __enter__(self) -> StemFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(self, sound: Samples, stems: Samples) -> None:
        """Write the stems [stem, channel, frame] of a block [channel, frame].

        The difference between the input and the sum of the stems is distributed evenly (mixture consistency: Wisdom et
        al., "Differentiable consistency constraints for improved deep speech enhancement", ICASSP 2019). In integer
        formats the last stem is the input minus the others, so that the sum is exact.
        """
        stems = stems + (sound - stems.sum(0)) / np.float32(len(stems))
        if not self._is_integer:
            for file, stem in zip(self._files, stems, strict=True):
                file.write(stem.T)
            return
        residual = _quantise(sound)
        for file, stem in zip(self._files[:-1], stems[:-1], strict=True):
            self._write(file, part := _quantise(stem))
            residual = residual - self._clip(part)
        self._write(self._files[-1], residual)

    def _write(self, file: soundfile.SoundFile, samples: NDArray[np.int64]) -> None:
        clipped = self._clip(samples)
        self.clipped += int((clipped != samples).sum())
        file.write((clipped << 8).astype(np.int32).T)

    @staticmethod
    def _clip(samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(samples, -FULL_SCALE, FULL_SCALE - 1)


def _quantise(samples: Samples) -> NDArray[np.int64]:
    return np.rint(samples.astype(np.float64) * FULL_SCALE).astype(np.int64)
