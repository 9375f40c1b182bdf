"""Audio measurements: levels, true peaks, note onsets, clicks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]


def decibels(value: float) -> float:
    """Return the level in dBFS; silence is -200."""
    return 20 * float(np.log10(max(value, 1e-10)))


def true_peak(audio: Samples) -> float:
    """Return the true peak of [frames, channels] by fourfold oversampling, in pieces of a second."""
    size, highest = 44_100, 0.0
    for start in range(0, len(audio), size // 2):
        piece = audio[start : start + size]
        spectrum = np.fft.rfft(piece, axis=0)
        fine = np.fft.irfft(spectrum, 4 * len(piece), axis=0) * 4
        edge = len(piece) // 20 * 4  # a piece wraps around, which bends its ends
        highest = max(highest, float(np.abs(fine[edge : len(fine) - edge]).max(initial=0.0)))
    return highest


def onset_s(audio: Samples, rate: int, near_s: float, before_s: float = 0.1, after_s: float = 0.15) -> float:
    """Return the onset of a note near an expected time, in seconds from that time, if little else sounds.

    The onset is the first millisecond within 20 dB of the peak level and above all earlier levels.
    """
    window = rate // 1000
    first, moment = round((near_s - before_s) * rate), round(near_s * rate)
    piece = audio[first : moment + round(after_s * rate)].mean(axis=1)
    level = np.sqrt(np.convolve(piece**2, np.ones(window) / window, mode="full")[: len(piece)])
    earlier = level[: (moment - first) * 3 // 4].max()
    return float(np.argmax(level > max(0.1 * level.max(), 1.2 * earlier)) + first - moment) / rate


def roughness(tone: Samples) -> Samples:
    """Return the largest second difference in each piece of 5 ms; a click exceeds its neighbours."""
    bends = np.abs(np.diff(tone, 2))
    pieces = len(bends) // 220
    loudest: Samples = bends[: pieces * 220].reshape(pieces, 220).max(axis=1)
    return loudest
