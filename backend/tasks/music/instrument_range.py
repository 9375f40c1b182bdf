"""Fitting of a melody into an instrument's range. Standard library only.

If possible, the complete melody is transposed by octaves. Otherwise single notes that are out of range are moved by
octaves, as players do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.score import Melody

_OCTAVES = range(-8, 9)


def octave_shift(pitches: Iterable[int], instrument: str) -> int | None:
    """Return the smallest octave transposition, in semitones, that brings all pitches into range; None without one."""
    lowest, highest = min(pitches := list(pitches), default=60), max(pitches, default=60)
    instrument_range = INSTRUMENTS[instrument]
    fits = [
        12 * octaves
        for octaves in _OCTAVES
        if instrument_range.lowest <= lowest + 12 * octaves and highest + 12 * octaves <= instrument_range.highest
    ]
    return min(fits, key=abs) if fits else None


def instruments_for(pitches: Iterable[int]) -> list[str]:
    """Return the instruments whose range fits all pitches in some octave."""
    pitches = list(pitches)
    return [name for name in INSTRUMENTS if octave_shift(pitches, name) is not None]


def fit_to_range(melody: Melody, instrument: str) -> Melody:
    """Return the melody; notes that are out of range in the best octave are moved by octaves."""
    pitches = [note.pitch for note in melody.notes]
    if octave_shift(pitches, instrument) is not None:
        return melody
    instrument_range = INSTRUMENTS[instrument]

    def count_out_of_range(octaves: int) -> int:
        return sum(not instrument_range.lowest <= pitch + 12 * octaves <= instrument_range.highest for pitch in pitches)

    shift = 12 * min(_OCTAVES, key=lambda octaves: (count_out_of_range(octaves), abs(octaves)))
    notes = tuple(
        replace(
            note, pitch=_fold_octaves(note.pitch + shift, instrument_range.lowest, instrument_range.highest) - shift
        )
        for note in melody.notes
    )
    return replace(melody, notes=notes)


def _fold_octaves(pitch: int, lowest: int, highest: int) -> int:
    while pitch < lowest:
        pitch += 12
    while pitch > highest:
        pitch -= 12
    return pitch
