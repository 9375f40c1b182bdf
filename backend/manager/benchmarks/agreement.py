"""How far two devices or engines made the same of the same request: tokens in words, sound in numbers."""

from __future__ import annotations

import array
import sys
import wave
from pathlib import Path

from backend.manager.benchmarks.trial import Sample

_FULL_SCALE = 32768


def agreement(one: Sample, other: Sample) -> float | None:
    """The share of tokens (for a tune: of bars) before the first difference; None where there is nothing to compare."""
    if not one.tokens or not other.tokens:
        return None
    alike = 0
    while alike < min(len(one.tokens), len(other.tokens)) and one.tokens[alike] == other.tokens[alike]:
        alike += 1
    return alike / max(len(one.tokens), len(other.tokens))


def sound_error(one: Sample, other: Sample) -> float | None:
    """The largest difference between two sounds of the same notes, as a share of full scale; None for other notes."""
    if one.sound is None or other.sound is None or agreement(one, other) != 1:
        return None
    ours, theirs = _frames(one.sound), _frames(other.sound)
    if len(ours) != len(theirs):
        return 1.0
    return max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0) / _FULL_SCALE


def _frames(file: Path) -> array.array[int]:
    with wave.open(str(file)) as sound:
        assert sound.getsampwidth() == 2, "the music model writes 16 bits"
        frames = array.array("h", sound.readframes(sound.getnframes()))
    if sys.byteorder == "big":
        frames.byteswap()
    return frames
