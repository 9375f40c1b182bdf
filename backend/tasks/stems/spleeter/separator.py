"""Separation of a chunk with Spleeter's network: STFT, masks from the magnitudes, inverse STFT.

As in Spleeter: Hann windows of 4096 samples with a hop of 1024, and Wiener masks from the squared magnitudes. Bins
above the network's input get the mean mask of the frame's highest bins. The last stem is the chunk minus the other
stems, which is equivalent, since the masks add up to one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from backend.common.error_patterns import require_finite
from backend.tasks.stems.separator import Samples, Stop
from backend.tasks.stems.spleeter.network import BINS, CHANNELS, HOP, MULTIPLE, RATE, STEMS, WINDOW

Masks = Callable[
    [Samples, Stop], Samples
]  # magnitudes [1, channel, frame, bin] → masks [1, stem × channel, frame, bin]
CHUNK_FRAMES = 512  # STFT frames per chunk, as in training
_PAD = WINDOW - HOP  # so that every sample is in the same number of windows
_TOP_BINS = 128  # 9.6 to 11 kHz
_EPSILON = 1e-10
_HANN = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
_WINDOW_GAIN = np.float32(1.5)  # sum of the squared windows at each sample, with a hop of a quarter window


class SpleeterSeparator:
    """A Separator that computes its masks through the callback `masks`."""

    stems = STEMS
    rate = RATE

    def __init__(self, masks: Masks) -> None:
        self._masks = masks

    def chunk_frames(self, seconds: float | None) -> int:
        """Return the length of the chunk whose number of STFT frames is a multiple of MULTIPLE."""
        frames = CHUNK_FRAMES if seconds is None else seconds * RATE / HOP
        count: int = max(1, round(frames / MULTIPLE)) * MULTIPLE
        return (count - 1) * HOP + WINDOW - 2 * _PAD

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """Return the stems [stem, 2, frame]. Raises Cancelled, and WorkerCrashed for NaN or infinite masks."""
        spectra = _stft(np.pad(chunk, ((0, 0), (_PAD, _PAD))))
        magnitudes = np.abs(spectra[:, :, :BINS])
        magnitudes /= max(1.0, float(np.abs(chunk).max()))  # normalize audio that exceeds full scale
        masks = self._masks(magnitudes[None], stop)[0]
        require_finite(float(masks.max()))
        stem_masks = _wiener_masks(masks.reshape(len(STEMS), CHANNELS, *magnitudes.shape[1:]))
        stems = np.empty((len(STEMS), *chunk.shape), np.float32)
        stems[-1] = chunk
        for stem, mask in enumerate(stem_masks):
            stems[stem] = _istft(spectra * mask)[:, _PAD:-_PAD]
            stems[-1] -= stems[stem]
        return stems


def _wiener_masks(masks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return Wiener masks [stem - 1, channel, frame, WINDOW / 2 + 1] for all stems but the last."""
    squares = np.square(masks) + np.float32(_EPSILON)
    wiener = squares[:-1] / squares.sum(0)
    top = wiener[..., -_TOP_BINS:].mean(-1, keepdims=True)
    return np.concatenate([wiener, np.repeat(top, WINDOW // 2 + 1 - BINS, -1)], -1)


def _stft(sound: Samples) -> NDArray[np.complex64]:
    windows = np.lib.stride_tricks.sliding_window_view(sound, WINDOW, 1)[:, ::HOP]
    return np.fft.rfft(windows * _HANN).astype(np.complex64, copy=False)


def _istft(spectra: NDArray[np.complex64]) -> Samples:
    """Windows added up again: [channel, frames]."""
    pieces = np.fft.irfft(spectra, WINDOW).astype(np.float32, copy=False) * (_HANN / _WINDOW_GAIN)
    channels, count, _ = pieces.shape
    parts = WINDOW // HOP
    quarters = pieces.reshape(channels, count, parts, HOP)
    out = np.zeros((channels, count + parts - 1, HOP), np.float32)
    for part in range(parts):
        out[:, part : part + count] += quarters[:, :, part]
    return out.reshape(channels, -1)
