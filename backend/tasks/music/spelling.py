"""How pitches are written: key signatures, and the letter and accidental of every note.

Keys and notes are places on the line of fifths (F is -1, C is 0, G is 1, F sharp is 6), and so tells F sharp
from G flat.
"""

from __future__ import annotations

from dataclasses import dataclass

_LETTERS = "FCGDAEB"
_NATURAL = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_MODE_FIFTHS = {"major": 0, "minor": -3, "dorian": -2, "mixolydian": -1}
# The twelve places around the signature from which a mode takes notes outside its scale: major likes the raised fourth
# and the lowered seventh, third and sixth; modes with a minor third like the raised sixth and seventh instead.
_WINDOW_START = {"major": -4, "minor": -3, "dorian": -3, "mixolydian": -4}
_MOST_SIGNATURE = 7


@dataclass(frozen=True)
class Spelled:
    """A note as written: `alteration` is -1 for a flat, 1 for a sharp; C4 is MIDI 60."""

    letter: str
    alteration: int
    octave: int


@dataclass(frozen=True)
class Key:
    """A key as written: `fifths` counts sharps (flats below 0) of the signature."""

    tonic: str
    mode: str
    fifths: int

    def signature(self, letter: str) -> int:
        """The alteration that the signature gives a letter."""
        return -((_LETTERS.index(letter) - self.fifths) // 7)

    def name_of(self, pitch: int) -> str:
        """The name of a pitch class, as "F#" or "Bb"."""
        return _name(self._place_of(pitch))

    def _place_of(self, pitch: int) -> int:
        lowest = self.fifths + _WINDOW_START[self.mode]
        return next(place for place in range(lowest, lowest + 12) if place * 7 % 12 == pitch % 12)

    @property
    def midi_name(self) -> str:
        """The signature as a major key's name, or a minor one's for modes with a minor third."""
        if self.mode in ("minor", "dorian"):
            return _name(self.fifths + 3) + "m"
        return _name(self.fifths)

    def spell(self, pitch: int) -> Spelled:
        """The letter and accidental for a MIDI note number."""
        place = self._place_of(pitch)
        letter = _LETTERS[(place + 1) % 7]
        alteration = (place + 1) // 7
        return Spelled(letter, alteration, (pitch - alteration - _NATURAL[letter]) // 12 - 1)


def key_of(tonic: str, mode: str) -> Key:
    """The key with this tonic; one with more than seven sharps or flats is written as its enharmonic twin."""
    place = _place(tonic)
    fifths = place + _MODE_FIFTHS[mode]
    if abs(fifths) > _MOST_SIGNATURE:
        shift = -12 if fifths > 0 else 12
        place, fifths = place + shift, fifths + shift
    return Key(_name(place), mode, fifths)


def pitch_class(tonic: str) -> int:
    """The pitch class of a name such as "F#" or "Bb"."""
    return _place(tonic) * 7 % 12


def _place(name: str) -> int:
    return _LETTERS.index(name[0]) - 1 + 7 * (name.count("#") - name.count("b"))


def _name(place: int) -> str:
    letter, alteration = _LETTERS[(place + 1) % 7], (place + 1) // 7
    return letter + ("#" * alteration if alteration > 0 else "b" * -alteration)
