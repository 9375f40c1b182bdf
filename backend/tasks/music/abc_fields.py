"""Parsers for ABC header fields: key, meter, unit length. They accept the spellings of old collections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
SHARPS_ORDER = "FCGDAEB"
# The offset of a mode's key signature from the major key with the same tonic, in fifths.
MODES = {
    "maj": ("major", 0), "ion": ("major", 0), "m": ("minor", -3), "min": ("minor", -3), "aeo": ("minor", -3),
    "mix": ("mixolydian", -1), "dor": ("dorian", -2), "phr": ("phrygian", -4), "lyd": ("lydian", 1),
    "loc": ("locrian", -5),
}  # fmt: skip
NAMED_METERS = {"C": (4, 4), "C|": (2, 2), "": (4, 4), "none": (4, 4)}


class AbcError(ValueError):
    """ABC that cannot be parsed. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, reason: str, remedy: str) -> None:
        super().__init__(f"line {line}, column {column}: {reason}; {remedy}")
        self.line, self.column, self.reason, self.remedy = line, column, reason, remedy


@dataclass(frozen=True)
class Key:
    """A key: a tonic such as "F#", the mode's full name, and the accidental of each letter in semitones."""

    tonic: str
    mode: str
    accidentals: dict[str, int]

    @property
    def pitch_class(self) -> int:
        """The pitch class of the tonic; C is 0."""
        return (STEPS[self.tonic[0]] + self.tonic.count("#") - self.tonic.count("b")) % 12


def signature(tonic: str, mode_fifths: int) -> dict[str, int]:
    """Return the key signature: the accidental of each letter in semitones."""
    fifths = "FCGDAEB".index(tonic[0]) - 1 + 7 * (tonic.count("#") - tonic.count("b")) + mode_fifths
    count = dict.fromkeys(SHARPS_ORDER, 0)
    for number in range(abs(fifths)):
        letter = SHARPS_ORDER[number % 7] if fifths > 0 else SHARPS_ORDER[::-1][number % 7]
        count[letter] += 1 if fifths > 0 else -1
    return count


def parse_key(text: str) -> Key:
    """Parse the value of `K:`, such as "Ador", "E Minor", "F#m", "D mix", "HP", "none", "G ^f". Raises ValueError."""
    text = text.strip()
    if text[:2] in ("HP", "Hp"):
        return Key("A", "mixolydian", signature("A", -1))
    if not text or text.lower().startswith("none"):
        return Key("C", "major", dict.fromkeys(SHARPS_ORDER, 0))
    match = re.match(r"([A-Ga-g])([#b♯♭]?)\s*([A-Za-z]*)", text)
    if not match:
        raise ValueError(f"'{text}' is not a key")
    tonic = match[1].upper() + match[2].replace("♯", "#").replace("♭", "b")
    mode_name = match[3]
    rest = text[match.end(3) :]
    if mode_name.lower() in (
        "clef",
        "exp",
        "octave",
        "transpose",
        "treble",
        "bass",
        "staff",
        "middle",
        "style",
        "stafflines",
    ):
        mode_name, rest = "", text[match.end(2) :]
    short = "maj" if mode_name in ("", "M") else mode_name.lower()[:3]
    if short not in MODES or (short == "m" and mode_name.lower() != "m"):
        raise ValueError(f"'{mode_name}' is not a mode of ABC")
    name, fifths = MODES[short]
    accidentals = signature(tonic, fifths)
    if re.search(r"\bexp\b", rest):
        accidentals = dict.fromkeys(SHARPS_ORDER, 0)
    for accidental, letter in re.findall(r"(?<!\S)(\^\^|\^|__|_|=)([A-Ga-g])\b", rest):
        accidentals[letter.upper()] = accidental.count("^") - accidental.count("_")
    return Key(tonic, name, accidentals)


def parse_meter(text: str) -> tuple[int, int]:
    """Parse the value of `M:`, such as "6/8", "C|", "2+3/8", "none". Raises ValueError."""
    text = text.strip().rstrip(".")
    if text in NAMED_METERS:
        return NAMED_METERS[text]
    match = re.match(r"\(?\s*(\d{1,9}(?:\s*\+\s*\d{1,9})*)\s*\)?\s*/\s*(\d{1,9})(?!\d)", text)
    if not match:
        raise ValueError(f"'{text[:50]}' is not a meter")
    top, bottom = sum(int(part) for part in match[1].split("+")), int(match[2])
    if not 1 <= top <= 64 or bottom not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"{top}/{bottom} is not a meter")
    return top, bottom


def parse_unit(text: str) -> Fraction:
    """Parse the value of `L:`, such as "1/8" or "1". Raises ValueError."""
    match = re.match(r"\s*(\d{1,9})\s*(?:/\s*(\d{1,9}))?(?![\d/])", text)
    if not match or int(match[1]) == 0 or int(match[2] or 1) not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"'{text.strip()[:50]}' is not a unit length such as 1/8")
    return Fraction(int(match[1]), int(match[2] or 1))


def default_unit(meter: tuple[int, int]) -> Fraction:
    """Return the ABC standard's default: a sixteenth in meters below 3/4, else an eighth."""
    return Fraction(1, 16) if Fraction(*meter) < Fraction(3, 4) else Fraction(1, 8)
