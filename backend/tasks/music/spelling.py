"""Pitch spelling: key signatures, and the letter and accidental of every note.

Keys and notes are positions on the line of fifths (F is -1, C is 0, G is 1, F sharp is 6), which distinguishes F sharp
from G flat.
"""

from __future__ import annotations

from dataclasses import dataclass

_LETTERS = "FCGDAEB"
_NATURAL = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_MODE_FIFTHS = {"major": 0, "minor": -3, "dorian": -2, "mixolydian": -1}
# The start of the twelve positions that spell a mode's notes, relative to the signature. Chromatic notes in major are
# the raised fourth and the lowered seventh, third and sixth; in modes with a minor third the raised sixth and seventh.
_WINDOW_START = {"major": -4, "minor": -3, "dorian": -3, "mixolydian": -4}
_MAX_ACCIDENTALS = 7


@dataclass(frozen=True)
class SpelledNote:
    """A spelled note. `alteration` is -1 for a flat, 1 for a sharp; C4 is MIDI note 60."""

    letter: str
    alteration: int
    octave: int


@dataclass(frozen=True)
class Key:
    """A spelled key. `fifths` is the number of sharps in the signature, negative for flats."""

    tonic: str
    mode: str
    fifths: int

    def signature(self, letter: str) -> int:
        """Return the alteration of a letter in the key signature."""
        return -((_LETTERS.index(letter) - self.fifths) // 7)

    def name_of(self, pitch: int) -> str:
        """Return the name of a pitch class, such as "F#" or "Bb"."""
        return _note_name(self._fifths_position(pitch))

    def _fifths_position(self, pitch: int) -> int:
        lowest = self.fifths + _WINDOW_START[self.mode]
        return next(place for place in range(lowest, lowest + 12) if place * 7 % 12 == pitch % 12)

    @property
    def midi_name(self) -> str:
        """The key with this signature for MIDI: a major key, or a minor one for modes with a minor third."""
        if self.mode in ("minor", "dorian"):
            return _note_name(self.fifths + 3) + "m"
        return _note_name(self.fifths)

    def spell(self, pitch: int) -> SpelledNote:
        """Return the spelling of a MIDI note number."""
        place = self._fifths_position(pitch)
        letter = _LETTERS[(place + 1) % 7]
        alteration = (place + 1) // 7
        return SpelledNote(letter, alteration, (pitch - alteration - _NATURAL[letter]) // 12 - 1)


def key_of(tonic: str, mode: str) -> Key:
    """Return the key with this tonic, or its enharmonic equivalent if it has more than seven sharps or flats."""
    place = _fifths_of(tonic)
    fifths = place + _MODE_FIFTHS[mode]
    if abs(fifths) > _MAX_ACCIDENTALS:
        shift = -12 if fifths > 0 else 12
        place, fifths = place + shift, fifths + shift
    return Key(_note_name(place), mode, fifths)


def pitch_class(tonic: str) -> int:
    """Return the pitch class of a name such as "F#" or "Bb"."""
    return _fifths_of(tonic) * 7 % 12


def _fifths_of(name: str) -> int:
    return _LETTERS.index(name[0]) - 1 + 7 * (name.count("#") - name.count("b"))


def _note_name(place: int) -> str:
    letter, alteration = _LETTERS[(place + 1) % 7], (place + 1) // 7
    return letter + ("#" * alteration if alteration > 0 else "b" * -alteration)
