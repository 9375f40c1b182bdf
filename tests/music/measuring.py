"""What can be measured of audio: levels, what lies between the samples, where notes begin, sudden jumps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]


def decibels(value: float) -> float:
    """Beside full scale; silence is -200."""
    return 20 * float(np.log10(max(value, 1e-10)))


def true_peak(audio: Samples) -> float:
    """The highest magnitude of [frames, channels] at four times the rate, in pieces of a second."""
    size, highest = 44_100, 0.0
    for start in range(0, len(audio), size // 2):
        piece = audio[start : start + size]
        spectrum = np.fft.rfft(piece, axis=0)
        fine = np.fft.irfft(spectrum, 4 * len(piece), axis=0) * 4
        edge = len(piece) // 20 * 4  # a piece wraps around, which bends its ends
        highest = max(highest, float(np.abs(fine[edge : len(fine) - edge]).max(initial=0.0)))
    return highest


def onset_s(audio: Samples, rate: int, near_s: float, before_s: float = 0.1, after_s: float = 0.15) -> float:
    """Where a note begins near a moment at which little else sounds, in seconds from that moment.

    It is where the level of a millisecond first comes within 20 dB of the loudest and is above all that was before.
    """
    window = rate // 1000
    first, moment = round((near_s - before_s) * rate), round(near_s * rate)
    piece = audio[first : moment + round(after_s * rate)].mean(axis=1)
    level = np.sqrt(np.convolve(piece**2, np.ones(window) / window, mode="full")[: len(piece)])
    earlier = level[: (moment - first) * 3 // 4].max()
    return float(np.argmax(level > max(0.1 * level.max(), 1.2 * earlier)) + first - moment) / rate


def roughness(tone: Samples) -> Samples:
    """The largest second difference in each piece of 5 ms: a click stands out from its neighbours."""
    bends = np.abs(np.diff(tone, 2))
    pieces = len(bends) // 220
    loudest: Samples = bends[: pieces * 220].reshape(pieces, 220).max(axis=1)
    return loudest
