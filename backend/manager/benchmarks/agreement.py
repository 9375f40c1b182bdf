"""Compares what two devices or engines generated for the same request: tokens, or notes and sound."""

from __future__ import annotations

import array
import sys
import wave
from pathlib import Path

from backend.manager.benchmarks.trial import Sample

_FULL_SCALE = 32768


def agreement(one: Sample, other: Sample) -> float | None:
    """Return the share of tokens (for a tune: of bars) before the first difference; None if either has none."""
    if not one.tokens or not other.tokens:
        return None
    equal = 0
    while equal < min(len(one.tokens), len(other.tokens)) and one.tokens[equal] == other.tokens[equal]:
        equal += 1
    return equal / max(len(one.tokens), len(other.tokens))


def sound_error(one: Sample, other: Sample) -> float | None:
    """Return the largest difference of two recordings of the same notes, as a share of full scale.

    None if the notes differ or a sound is missing; 1.0 if the lengths differ.
    """
    if one.sound is None or other.sound is None or agreement(one, other) != 1:
        return None
    frames, other_frames = _frames(one.sound), _frames(other.sound)
    if len(frames) != len(other_frames):
        return 1.0
    return max((abs(a - b) for a, b in zip(frames, other_frames, strict=True)), default=0) / _FULL_SCALE


def _frames(file: Path) -> array.array[int]:
    with wave.open(str(file)) as sound:
        assert sound.getsampwidth() == 2, "the music model writes 16-bit samples"
        frames = array.array("h", sound.readframes(sound.getnframes()))
    if sys.byteorder == "big":
        frames.byteswap()
    return frames
