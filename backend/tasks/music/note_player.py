"""A sampler: it plays a recording at another pitch, with its loop, envelope and release.

The pitch is changed by band-limited interpolation with a Kaiser-windowed sinc. For notes above the recording's pitch
the band is narrower, which prevents aliasing. The tone of each pitch is cached and cut to length for each note.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from backend.tasks.music.soundbank import GUARD, Recording, Samples, recording_for

RATE = 44_100
_TAPS = 16
_MAX_TAPS = 2 * GUARD
_PHASES = 2048
_KAISER_BETA = 8.0
_BANDS = 32  # resampling ratios are rounded up to multiples of 1/32, which limits the number of kernels
_BAND = 0.92  # passband as a fraction of the narrower band; the rest is the transition band
_CACHE_BYTES = 48_000_000  # for tones, and again for notes
_RELEASE_DB = 66.0  # attenuation at which a release ends
_STEP_FRAMES = RATE // 2  # tone lengths are rounded up to this, so that a slightly longer note can use the cache


class Sampler:
    """Notes of all instruments with a cache of tones and notes. Thread-safe; jobs share it."""

    def __init__(self) -> None:
        self._tones: dict[tuple[str, int], Samples] = {}
        self._notes: OrderedDict[tuple[str, int, int], Samples] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def note(self, instrument: str, pitch: int, frames: int) -> Samples:
        """Return a note at full velocity, held for `frames` at 44.1 kHz and then released. Raises KeyError, OSError."""
        with self._lock:
            return self._note(instrument, pitch, frames)

    def _note(self, instrument: str, pitch: int, frames: int) -> Samples:
        key = (instrument, pitch, frames)
        if key not in self._notes:
            recording = recording_for(instrument, pitch)
            release = round(recording.release_s * _RELEASE_DB / 100 * RATE)
            note = self._tone(instrument, pitch, recording, frames + release)[: frames + release].copy()
            if len(note) > frames:
                fall = -100 / 20 / recording.release_s / RATE
                note[frames:] *= 10.0 ** (fall * np.arange(1, len(note) - frames + 1, dtype=np.float32))
            self._cache(key, note)
        self._notes.move_to_end(key)
        return self._notes[key]

    def _tone(self, instrument: str, pitch: int, recording: Recording, frames: int) -> Samples:
        key = (instrument, pitch)
        tone = self._tones.get(key)
        if tone is None or len(tone) < frames:
            steps = -(-frames // _STEP_FRAMES)
            tone = self._tones[key] = render_tone(recording, pitch, steps * _STEP_FRAMES)
        return tone

    def _cache(self, key: tuple[str, int, int], note: Samples) -> None:
        self._notes[key] = note
        self._bytes += note.nbytes
        while self._bytes > _CACHE_BYTES and len(self._notes) > 1:
            self._bytes -= self._notes.popitem(last=False)[1].nbytes
        if sum(tone.nbytes for tone in self._tones.values()) > _CACHE_BYTES:
            self._tones.clear()


def render_tone(recording: Recording, pitch: float, frames: int) -> Samples:
    """Return a recording at a pitch, looped, with attack, hold and decay: [frames] float32 at 44.1 kHz.

    A recording without a loop may be shorter than `frames`.
    """
    step = 2 ** ((pitch - recording.root) / 12) * recording.rate / RATE
    length = len(recording.samples) - 2 * GUARD
    if recording.loop is None:
        frames = min(frames, int(length / step))
    positions = np.arange(frames) * step
    indexes = positions.astype(np.int64)
    phases = ((positions - indexes) * _PHASES).astype(np.int64)
    if recording.loop is not None:
        start, end = recording.loop
        looping = indexes >= end
        indexes[looping] = start + (indexes[looping] - start) % (end - start)
    kernel = _kernel(math.ceil(_BANDS * max(1.0, step)))
    taps = kernel.shape[1]
    windows = sliding_window_view(recording.samples, taps)
    tone: Samples = np.einsum("ij,ij->i", windows[indexes + (GUARD - taps // 2 + 1)], kernel[phases])
    tone *= _envelope(recording, frames)
    return tone


@lru_cache(maxsize=128)
def _kernel(faster: int) -> Samples:
    """Return the polyphase interpolation kernel [phases, taps].

    `faster` is the resampling ratio, at least 1, in units of 1 / `_BANDS`.
    """
    bandwidth = _BANDS / faster
    taps = min(2 * math.ceil(_TAPS / 2 / bandwidth), _MAX_TAPS)
    offsets = np.arange(taps) - (taps // 2 - 1)
    distance = offsets[None, :] - (np.arange(_PHASES)[:, None] + 0.5) / _PHASES
    edge = distance / (taps / 2)
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - edge**2, 0, None))) / np.i0(_KAISER_BETA)
    weights = np.sinc(distance * bandwidth * _BAND) * window
    # Normalize each phase to unity DC gain; otherwise the level would be modulated by the phase.
    kernel: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return kernel


def _envelope(recording: Recording, frames: int) -> Samples:
    time_s = np.arange(frames, dtype=np.float32) / np.float32(RATE)
    gain = np.full(frames, recording.gain, np.float32)
    if recording.decay_s > 0 and recording.sustain_db > 0:
        since = np.clip(time_s - (recording.attack_s + recording.hold_s), 0, None)
        down_db = np.minimum(since * (100 / recording.decay_s), recording.sustain_db)
        gain *= 10.0 ** (down_db / np.float32(-20))
    rising = round(recording.attack_s * RATE)
    if rising > 1:
        gain[:rising] *= np.linspace(0, 1, rising, dtype=np.float32)[: len(gain[:rising])]
    return gain
