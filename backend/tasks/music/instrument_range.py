"""What an instrument can reach of a melody. Standard library only.

A melody moves to another octave as a whole where that is enough. Single notes beyond are played an octave nearer, as
players do whose instrument ends there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.score import Melody

_OCTAVES = range(-8, 9)


def shift_of(pitches: Iterable[int], instrument: str) -> int | None:
    """Semitones, a multiple of 12 and as few as possible, that bring all pitches into reach; None if none do."""
    lowest, highest = min(pitches := list(pitches), default=60), max(pitches, default=60)
    reach = INSTRUMENTS[instrument]
    fits = [
        12 * octaves
        for octaves in _OCTAVES
        if reach.lowest <= lowest + 12 * octaves and highest + 12 * octaves <= reach.highest
    ]
    return min(fits, key=abs) if fits else None


def reaching(pitches: Iterable[int]) -> list[str]:
    """The instruments that reach all pitches in some octave."""
    pitches = list(pitches)
    return [name for name in INSTRUMENTS if shift_of(pitches, name) is not None]


def within_reach(melody: Melody, instrument: str) -> Melody:
    """The melody, with the notes that stay beyond in every octave brought nearer."""
    pitches = [note.pitch for note in melody.notes]
    if shift_of(pitches, instrument) is not None:
        return melody
    reach = INSTRUMENTS[instrument]

    def beyond(octaves: int) -> int:
        return sum(not reach.lowest <= pitch + 12 * octaves <= reach.highest for pitch in pitches)

    shift = 12 * min(_OCTAVES, key=lambda octaves: (beyond(octaves), abs(octaves)))
    notes = tuple(
        replace(note, pitch=_nearer(note.pitch + shift, reach.lowest, reach.highest) - shift) for note in melody.notes
    )
    return replace(melody, notes=notes)


def _nearer(pitch: int, lowest: int, highest: int) -> int:
    while pitch < lowest:
        pitch += 12
    while pitch > highest:
        pitch -= 12
    return pitch
