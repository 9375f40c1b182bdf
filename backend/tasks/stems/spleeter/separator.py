"""Separates a chunk with Spleeter's network: spectra, masks from their magnitudes, and back to sound.

As Spleeter does it: Hann windows of 4096 with steps of 1024, each stem's share the square of its magnitude; above the
bins that the network sees, a frame has the mean share of its highest ones. The last stem is what the others leave of
the chunk, which is the same, since the shares add up to one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from backend.common.error_patterns import require_finite
from backend.tasks.stems.separator import Samples, Stop
from backend.tasks.stems.spleeter.network import BINS, CHANNELS, FRAME, MULTIPLE, RATE, STEMS, STEP

Masks = Callable[[Samples, Stop], Samples]  # [1, stem × channel, frame, bin] of magnitudes [1, channel, frame, bin]
FRAMES = 512  # of a chunk, as in training
_PAD = FRAME - STEP  # so that each sample lies in as many windows as any other
_TOP_BINS = 128  # 9.6 to 11 kHz
_LEAST = 1e-10
_WINDOW = np.hanning(FRAME + 1)[:-1].astype(np.float32)
_WINDOWS_SUM = np.float32(1.5)  # of the squared window at each sample, with steps of a quarter


class SpleeterSeparator:
    """A Separator over whatever computes the masks."""

    stems = STEMS
    rate = RATE

    def __init__(self, masks: Masks) -> None:
        self._masks = masks

    def chunk_frames(self, seconds: float | None) -> int:
        """A multiple of what the network halves."""
        wanted = FRAMES if seconds is None else seconds * RATE / STEP
        count: int = max(1, round(wanted / MULTIPLE)) * MULTIPLE
        return (count - 1) * STEP + FRAME - 2 * _PAD

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """[stem, 2, frames]. Raises Stopped, and WorkerCrashed where the network gives no numbers."""
        spectra = _spectra(np.pad(chunk, ((0, 0), (_PAD, _PAD))))
        magnitudes = np.abs(spectra[:, :, :BINS])
        magnitudes /= max(1.0, float(np.abs(chunk).max()))  # a sound over full scale is taken at full scale
        masks = self._masks(magnitudes[None], stop)[0]
        require_finite(float(masks.max()))
        shares = _shares(masks.reshape(len(STEMS), CHANNELS, *magnitudes.shape[1:]))
        found = np.empty((len(STEMS), *chunk.shape), np.float32)
        found[-1] = chunk
        for stem, share in enumerate(shares):
            found[stem] = _sound(spectra * share)[:, _PAD:-_PAD]
            found[-1] -= found[stem]
        return found


def _shares(masks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each stem but the last its part of every bin [stem - 1, channel, frame, FRAME / 2 + 1]; Wiener's filter."""
    squares = np.square(masks) + np.float32(_LEAST)
    shares = squares[:-1] / squares.sum(0)
    top = shares[..., -_TOP_BINS:].mean(-1, keepdims=True)
    return np.concatenate([shares, np.repeat(top, FRAME // 2 + 1 - BINS, -1)], -1)


def _spectra(sound: Samples) -> NDArray[np.complex64]:
    windows = np.lib.stride_tricks.sliding_window_view(sound, FRAME, 1)[:, ::STEP]
    return np.fft.rfft(windows * _WINDOW).astype(np.complex64, copy=False)


def _sound(spectra: NDArray[np.complex64]) -> Samples:
    """Windows added up again: [channel, frames]."""
    pieces = np.fft.irfft(spectra, FRAME).astype(np.float32, copy=False) * (_WINDOW / _WINDOWS_SUM)
    channels, count, _ = pieces.shape
    parts = FRAME // STEP
    quarters = pieces.reshape(channels, count, parts, STEP)
    out = np.zeros((channels, count + parts - 1, STEP), np.float32)
    for part in range(parts):
        out[:, part : part + count] += quarters[:, :, part]
    return out.reshape(channels, -1)
