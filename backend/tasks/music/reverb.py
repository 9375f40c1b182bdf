"""A convolution reverb with a synthetic impulse response, computed block by block with the FFT.

The impulse response is decaying noise; high frequencies decay faster, and the two channels differ. Its seed is fixed,
so that every render is the same.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

_PREDELAY_S = 0.014
_LENGTH_S = 1.4
_SEED = 1850
# Frequency bands: upper edge in Hz, and decay time by 60 dB (RT60) in seconds.
_DECAYS = ((250.0, 1.1), (1000.0, 1.2), (3000.0, 1.0), (7000.0, 0.7), (14000.0, 0.4))
_LOWEST_HZ = 120.0


class Reverb:
    """A mono-to-stereo reverb by partitioned convolution. All blocks have `block` samples."""

    def __init__(self, rate: int, block: int) -> None:
        self._block = block
        self._response = _partition_spectra(rate, block)
        parts = self._response.shape[0]
        self._history = np.zeros((parts, block + 1), np.complex64)
        self._tail = np.zeros((2, block), np.float32)

    def process(self, dry: Samples) -> Samples:
        """Return the wet signal [2, block] for a dry block [block]."""
        self._history = np.roll(self._history, 1, axis=0)
        self._history[0] = np.fft.rfft(dry, 2 * self._block)
        spectrum = (self._history[:, None, :] * self._response).sum(axis=0)
        wet = np.asarray(np.fft.irfft(spectrum, 2 * self._block), np.float32)
        out = wet[:, : self._block] + self._tail
        self._tail = wet[:, self._block :]
        return out


@lru_cache(maxsize=2)
def _partition_spectra(rate: int, block: int) -> NDArray[np.complex64]:
    """Return the spectra of the impulse response's partitions of one block each: [parts, 2, block + 1]."""
    response = _impulse_response(rate)
    parts = -(-response.shape[1] // block)
    padded = np.zeros((2, parts * block), np.float32)
    padded[:, : response.shape[1]] = response
    cut = padded.reshape(2, parts, block).swapaxes(0, 1)
    return np.fft.rfft(cut, 2 * block).astype(np.complex64)


def _impulse_response(rate: int) -> Samples:
    """Return the impulse response [2, samples], with unit energy per channel."""
    length = round(_LENGTH_S * rate)
    random = np.random.RandomState(_SEED)  # the generator whose output NumPy guarantees not to change
    noise = np.fft.rfft(random.standard_normal((2, length)))
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    time_s = np.arange(length) / rate
    response = np.zeros((2, length))
    lower = _LOWEST_HZ
    for upper, decay_s in _DECAYS:
        band = np.where((frequencies >= lower) & (frequencies < upper), noise, 0)
        response += np.fft.irfft(band, length) * 10 ** (-3 * time_s / decay_s)
        lower = upper
    early = round(_PREDELAY_S * rate)
    response[:, early:] = response[:, : length - early].copy()
    response[:, :early] = 0
    rise = round(0.004 * rate)
    response[:, early : early + rise] *= np.linspace(0, 1, rise)
    response[:, -early:] *= np.linspace(1, 0, early)
    scaled: Samples = (response / np.sqrt((response**2).sum(axis=1, keepdims=True))).astype(np.float32)
    return scaled
