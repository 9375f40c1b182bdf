"""Keeps the mix below its ceiling without clipping: the gain falls in time for a loud moment and comes back.

The gain that short pieces need is spread over their neighbours by a running minimum and smoothed by a window no wider
than that, so that at every sample it is at most what is needed there.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Samples = NDArray[np.float32]

CEILING = 10 ** (-2.0 / 20)  # a decibel is left for what lies between the samples
_PIECE = 64
_REACH = 40  # pieces to each side, 58 ms at 44.1 kHz


class Limiter:
    """Takes stereo blocks of `block` samples, a multiple of 64 and over 2,560; gives each back one block later."""

    def __init__(self, block: int) -> None:
        self._pieces = block // _PIECE
        self._needed = np.ones(2 * self._pieces, np.float32)
        self._waiting = np.zeros((2, block), np.float32)
        window = np.hanning(2 * _REACH + 1)[1:-1]
        self._smooth = (window / window.sum()).astype(np.float32)

    def process(self, mix: Samples) -> Samples:
        """Takes [2, block]; returns the block before, limited (silence at the first call)."""
        peaks = np.abs(mix).max(axis=0).reshape(self._pieces, _PIECE).max(axis=1)
        needed = np.concatenate([self._needed, np.minimum(1.0, CEILING / np.maximum(peaks, CEILING))])
        self._needed = needed[-2 * self._pieces :]
        out = self._waiting
        self._waiting = mix
        if needed.min() == 1.0:
            return out
        reach = _REACH + 1  # one more, since a sample also hears the neighbouring pieces' gains
        low = sliding_window_view(needed, 2 * reach + 1).min(axis=1)
        smooth = np.convolve(low, self._smooth, mode="valid")
        # `smooth` begins at piece `reach + _REACH - 1` of the three blocks; the middle block needs one piece around it.
        first = self._pieces - (reach + _REACH - 1)
        gains = smooth[first - 1 : first + self._pieces + 1]
        centres = np.arange(-1, self._pieces + 1) * _PIECE + (_PIECE - 1) / 2
        limited: Samples = out * np.interp(np.arange(out.shape[1]), centres, gains).astype(np.float32)
        return limited
