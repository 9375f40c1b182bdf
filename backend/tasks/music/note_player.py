"""Plays notes: a recording at another pitch, its loop for as long as the note lasts, its envelope, its release.

Pitch is changed by band-limited interpolation, a sinc under a Kaiser window: with the recording's own band when a note
is lower than the recording, with a narrower one when it is higher, so that nothing folds back. What was computed for a
pitch is kept and cut to length for the next note.
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
_MOST_TAPS = 2 * GUARD
_PHASES = 2048
_KAISER_BETA = 8.0
_BANDS = 32  # a kernel serves all steps between two of so many to one
_BAND = 0.92  # of the narrower of the two bands is kept; the rest is the filter's slope
_KEPT_BYTES = 48_000_000  # of tones, and as many of notes
_DEAD_DB = 66.0  # a release ends when the note is this far down
_STEP_FRAMES = RATE // 2  # tones are computed in such steps, so that a slightly longer note needs no new one


class Sampler:
    """Notes of all instruments, with what was computed before. Jobs in several threads may share it."""

    def __init__(self) -> None:
        self._tones: dict[tuple[str, int], Samples] = {}
        self._notes: OrderedDict[tuple[str, int, int], Samples] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def note(self, instrument: str, pitch: int, frames: int) -> Samples:
        """A note at full velocity, held for `frames` at 44.1 kHz and then released. Raises KeyError, OSError."""
        with self._lock:
            return self._note(instrument, pitch, frames)

    def _note(self, instrument: str, pitch: int, frames: int) -> Samples:
        key = (instrument, pitch, frames)
        if key not in self._notes:
            recording = recording_for(instrument, pitch)
            release = round(recording.release_s * _DEAD_DB / 100 * RATE)
            note = self._tone(instrument, pitch, recording, frames + release)[: frames + release].copy()
            if len(note) > frames:
                fall = -100 / 20 / recording.release_s / RATE
                note[frames:] *= 10.0 ** (fall * np.arange(1, len(note) - frames + 1, dtype=np.float32))
            self._keep(key, note)
        self._notes.move_to_end(key)
        return self._notes[key]

    def _tone(self, instrument: str, pitch: int, recording: Recording, frames: int) -> Samples:
        key = (instrument, pitch)
        tone = self._tones.get(key)
        if tone is None or len(tone) < frames:
            steps = -(-frames // _STEP_FRAMES)
            tone = self._tones[key] = play(recording, pitch, steps * _STEP_FRAMES)
        return tone

    def _keep(self, key: tuple[str, int, int], note: Samples) -> None:
        self._notes[key] = note
        self._bytes += note.nbytes
        while self._bytes > _KEPT_BYTES and len(self._notes) > 1:
            self._bytes -= self._notes.popitem(last=False)[1].nbytes
        if sum(tone.nbytes for tone in self._tones.values()) > _KEPT_BYTES:
            self._tones.clear()


def play(recording: Recording, pitch: float, frames: int) -> Samples:
    """The recording at a pitch, looped, with attack, hold and decay; shorter than `frames` if it dies before.

    Returns [frames] float32 at 44.1 kHz.
    """
    step = 2 ** ((pitch - recording.root) / 12) * recording.rate / RATE
    length = len(recording.samples) - 2 * GUARD
    if recording.loop is None:
        frames = min(frames, int(length / step))
    places = np.arange(frames) * step
    whole = places.astype(np.int64)
    phases = ((places - whole) * _PHASES).astype(np.int64)
    if recording.loop is not None:
        start, end = recording.loop
        looping = whole >= end
        whole[looping] = start + (whole[looping] - start) % (end - start)
    kernel = _kernel(math.ceil(_BANDS * max(1.0, step)))
    taps = kernel.shape[1]
    windows = sliding_window_view(recording.samples, taps)
    tone: Samples = np.einsum("ij,ij->i", windows[whole + (GUARD - taps // 2 + 1)], kernel[phases])
    tone *= _envelope(recording, frames)
    return tone


@lru_cache(maxsize=128)
def _kernel(faster: int) -> Samples:
    """Weights of the samples around a place, for each fraction between two of them: [phases, taps].

    `faster` is how much higher than its recording a note is, at least 1, in parts of `_BANDS`.
    """
    narrow = _BANDS / faster
    taps = min(2 * math.ceil(_TAPS / 2 / narrow), _MOST_TAPS)
    offsets = np.arange(taps) - (taps // 2 - 1)
    distance = offsets[None, :] - (np.arange(_PHASES)[:, None] + 0.5) / _PHASES
    edge = distance / (taps / 2)
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - edge**2, 0, None))) / np.i0(_KAISER_BETA)
    weights = np.sinc(distance * narrow * _BAND) * window
    # Every phase must pass a constant unchanged, or the level would flutter with the fraction.
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
