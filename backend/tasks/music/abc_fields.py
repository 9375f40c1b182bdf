"""ABC's header fields: key, metre, unit length. Tolerant of the spellings found in old collections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
SHARPS_ORDER = "FCGDAEB"
# Fifths that a mode's key signature lies above that of the major key on the same tonic.
MODES = {
    "maj": ("major", 0), "ion": ("major", 0), "m": ("minor", -3), "min": ("minor", -3), "aeo": ("minor", -3),
    "mix": ("mixolydian", -1), "dor": ("dorian", -2), "phr": ("phrygian", -4), "lyd": ("lydian", 1),
    "loc": ("locrian", -5),
}  # fmt: skip
NAMED_METERS = {"C": (4, 4), "C|": (2, 2), "": (4, 4), "none": (4, 4)}


class AbcError(ValueError):
    """A place in ABC that cannot be read. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, reason: str, remedy: str) -> None:
        super().__init__(f"line {line}, column {column}: {reason}; {remedy}")
        self.line, self.column, self.reason, self.remedy = line, column, reason, remedy


@dataclass(frozen=True)
class Key:
    """A tonic such as "F#", a mode's full name, and the accidental of each letter in semitones."""

    tonic: str
    mode: str
    accidentals: dict[str, int]

    @property
    def pitch_class(self) -> int:
        """The tonic's, C is 0."""
        return (STEPS[self.tonic[0]] + self.tonic.count("#") - self.tonic.count("b")) % 12


def signature(tonic: str, mode_fifths: int) -> dict[str, int]:
    """Accidental of each letter of the key."""
    fifths = "FCGDAEB".index(tonic[0]) - 1 + 7 * (tonic.count("#") - tonic.count("b")) + mode_fifths
    count = dict.fromkeys(SHARPS_ORDER, 0)
    for number in range(abs(fifths)):
        letter = SHARPS_ORDER[number % 7] if fifths > 0 else SHARPS_ORDER[::-1][number % 7]
        count[letter] += 1 if fifths > 0 else -1
    return count


def read_key(text: str) -> Key:
    """`K:` as in "Ador", "E Minor", "F#m", "D mix", "HP", "none", "G ^f". Raises ValueError with a sentence."""
    text = text.strip()
    if text[:2] in ("HP", "Hp"):
        return Key("A", "mixolydian", signature("A", -1))
    if not text or text.lower().startswith("none"):
        return Key("C", "major", dict.fromkeys(SHARPS_ORDER, 0))
    found = re.match(r"([A-Ga-g])([#b♯♭]?)\s*([A-Za-z]*)", text)
    if not found:
        raise ValueError(f"'{text}' is no key")
    tonic = found[1].upper() + found[2].replace("♯", "#").replace("♭", "b")
    word = found[3]
    rest = text[found.end(3) :]
    if word.lower() in (
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
        word, rest = "", text[found.end(2) :]
    short = "maj" if word in ("", "M") else word.lower()[:3]
    if short not in MODES or (short == "m" and word.lower() != "m"):
        raise ValueError(f"'{word}' is no mode that ABC knows")
    name, fifths = MODES[short]
    accidentals = signature(tonic, fifths)
    if re.search(r"\bexp\b", rest):
        accidentals = dict.fromkeys(SHARPS_ORDER, 0)
    for mark, letter in re.findall(r"(?<!\S)(\^\^|\^|__|_|=)([A-Ga-g])\b", rest):
        accidentals[letter.upper()] = mark.count("^") - mark.count("_")
    return Key(tonic, name, accidentals)


def read_meter(text: str) -> tuple[int, int]:
    """`M:` as in "6/8", "C|", "2+3/8", "none". Raises ValueError with a sentence."""
    text = text.strip().rstrip(".")
    if text in NAMED_METERS:
        return NAMED_METERS[text]
    found = re.match(r"\(?\s*(\d{1,9}(?:\s*\+\s*\d{1,9})*)\s*\)?\s*/\s*(\d{1,9})(?!\d)", text)
    if not found:
        raise ValueError(f"'{text[:50]}' is no metre")
    top, bottom = sum(int(part) for part in found[1].split("+")), int(found[2])
    if not 1 <= top <= 64 or bottom not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"{top}/{bottom} is no metre")
    return top, bottom


def read_unit(text: str) -> Fraction:
    """`L:` as in "1/8" or "1". Raises ValueError with a sentence."""
    found = re.match(r"\s*(\d{1,9})\s*(?:/\s*(\d{1,9}))?(?![\d/])", text)
    if not found or int(found[1]) == 0 or int(found[2] or 1) not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"'{text.strip()[:50]}' is no unit length such as 1/8")
    return Fraction(int(found[1]), int(found[2] or 1))


def default_unit(meter: tuple[int, int]) -> Fraction:
    """The standard's: a sixteenth in metres below 3/4, else an eighth."""
    return Fraction(1, 16) if Fraction(*meter) < Fraction(3, 4) else Fraction(1, 8)
