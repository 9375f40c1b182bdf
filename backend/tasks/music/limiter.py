"""A look-ahead limiter: it keeps the mix below a ceiling without clipping.

The required gain of each piece of 64 samples goes through a running minimum and is smoothed by a window that is not
wider, so that the gain at every sample is at most the required one.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Samples = NDArray[np.float32]

CEILING = 10 ** (-2.0 / 20)  # -2 dBFS, which leaves headroom for peaks between samples
_PIECE = 64
_WINDOW_PIECES = 40  # pieces of look-ahead and release, 58 ms at 44.1 kHz


class Limiter:
    """Limits stereo blocks of `block` samples, a multiple of 64 over 2,560, with a delay of one block."""

    def __init__(self, block: int) -> None:
        self._pieces = block // _PIECE
        self._required_gains = np.ones(2 * self._pieces, np.float32)
        self._delayed = np.zeros((2, block), np.float32)
        window = np.hanning(2 * _WINDOW_PIECES + 1)[1:-1]
        self._smooth = (window / window.sum()).astype(np.float32)

    def process(self, mix: Samples) -> Samples:
        """Take a block [2, block] and return the previous one, limited. The first call returns silence."""
        peaks = np.abs(mix).max(axis=0).reshape(self._pieces, _PIECE).max(axis=1)
        needed = np.concatenate([self._required_gains, np.minimum(1.0, CEILING / np.maximum(peaks, CEILING))])
        self._required_gains = needed[-2 * self._pieces :]
        out = self._delayed
        self._delayed = mix
        if needed.min() == 1.0:
            return out
        reach = _WINDOW_PIECES + 1  # one more, since gains are interpolated with the neighbouring pieces
        low = sliding_window_view(needed, 2 * reach + 1).min(axis=1)
        smooth = np.convolve(low, self._smooth, mode="valid")
        # `smooth` starts at piece `reach + _WINDOW_PIECES - 1` of three blocks. The middle one needs a piece on each
        # side.
        first = self._pieces - (reach + _WINDOW_PIECES - 1)
        gains = smooth[first - 1 : first + self._pieces + 1]
        centres = np.arange(-1, self._pieces + 1) * _PIECE + (_PIECE - 1) / 2
        limited: Samples = out * np.interp(np.arange(out.shape[1]), centres, gains).astype(np.float32)
        return limited
