"""A score as ABC 2.1: melody and backing as voices, repeats written out as they are heard.

Everything is spelled so that readers who understand the standard differently read the same notes: an accidental is
written wherever the rule that it holds for one octave and the rule that it holds for all would lead to another pitch,
and always in chords and behind them, since some readers forget those of chords.
"""

from __future__ import annotations

from fractions import Fraction

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.notation import WHOLE, Bar, Element, Group, bars, line_ends, section_ends
from backend.tasks.music.score import TICKS_PER_WHOLE, Chord, Melody, Part, Score
from backend.tasks.music.spelling import Key, Spelled, key_of

_UNIT = WHOLE // 8  # L:1/8
_ACCIDENTALS = {-2: "__", -1: "_", 0: "=", 1: "^", 2: "^^"}
_MODE_NAMES = {"major": "", "minor": "m", "dorian": "dor", "mixolydian": "mix"}
_QUALITY_NAMES = {"maj": "", "min": "m", "dim": "dim"}
_MOST_FINE = 256  # a tempo that is no whole number is written for a part of the beat, down to this one
_LATE_S = 0.002  # by how much the last note may then be off


def to_text(score: Score) -> str:
    """The tune as text that ends with a newline."""
    melody = score.melody
    key = key_of(melody.tonic, melody.mode)
    top, bottom = melody.meter
    lines = ["%abc-2.1", "X:1", f"T:{_text(score.title)}", f"R:{_text(melody.form)}"]
    lines += [f"N:{_text(name)}: {_text(value)}" for name, value in score.credits.items()]
    lines += [f"M:{top}/{bottom}", "L:1/8", f"Q:{_tempo(score)}"]
    lines.append(f"K:{key.tonic}{_MODE_NAMES[melody.mode]}")
    for number, part in enumerate(score.parts, 1):
        instrument = INSTRUMENTS[part.instrument]
        clef = " clef=bass" if part.instrument == "bass" else ""
        lines += [f'V:{number} name="{instrument.label}"{clef}', f"%%MIDI program {instrument.program}"]
        if number == 1 and score.chords:
            lines.append("%%MIDI gchordoff")  # players must not add a backing of their own to the written one
        if melody.form == "hornpipe":
            lines.append("%%MIDI ratio 1 1")  # abc2midi swings whatever is called a hornpipe
        lines += _voice(melody, part, key, score.chords if number == 1 else ())
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """One line without comment signs."""
    return " ".join(text.split()).replace("%", r"\%")


def _tempo(score: Score) -> str:
    """Beats a minute as a whole number, of a part of the beat if need be, since many readers know no decimals."""
    part = 1
    while (
        part < _MOST_FINE and abs(round(score.tempo_bpm * part) / part / score.tempo_bpm - 1) * score.seconds > _LATE_S
    ):
        part *= 2
    beat = Fraction(score.beat_ticks, TICKS_PER_WHOLE) / part
    return f"{beat.numerator}/{beat.denominator}={round(score.tempo_bpm * part)}"


def _voice(melody: Melody, part: Part, key: Key, chords: tuple[Chord, ...]) -> list[str]:
    writer = _Writer(key, chords)
    written = bars(melody, part.notes)
    sections, breaks = section_ends(melody), line_ends(melody)
    lines, line = [], ""
    for bar in written:
        line += writer.bar(bar)
        line += " |]" if bar is written[-1] else " || " if bar.end in sections else " | "
        if bar is written[-1] or bar.end in breaks:
            lines.append(line.rstrip())
            line = ""
    return lines


class _Writer:
    """Writes one voice bar by bar; knows which accidentals hold."""

    def __init__(self, key: Key, chords: tuple[Chord, ...]) -> None:
        self._key = key
        self._chords = list(chords)
        self._in_octave: dict[tuple[str, int], int] = {}
        self._anywhere: dict[str, int] = {}
        self._from_chords: set[str] = set()

    def bar(self, bar: Bar) -> str:
        self._in_octave.clear()
        self._anywhere.clear()
        self._from_chords.clear()
        return " ".join(self._group(group) for group in bar.groups)

    def _group(self, group: Group) -> str:
        count = len(group.elements)
        before = "" if not group.triplet else "(3" if count == 3 else f"(3:2:{count}"
        return before + "".join(self._element(element) for element in group.elements)

    def _element(self, element: Element) -> str:
        length = _length(element.length)
        symbol = self._symbol(element)
        if not element.pitches:
            return f"{symbol}z{length}"
        chord = len(element.pitches) > 1
        names = [self._note(self._key.spell(pitch), chord) for pitch in element.pitches]
        tie = "-" if element.tied else ""
        written = f"[{''.join(names)}]" if chord else names[0]
        return f"{symbol}{written}{length}{tie}"

    def _symbol(self, element: Element) -> str:
        """The chord that begins at this element, or since the last one."""
        name = ""
        while self._chords and self._chords[0].start <= element.start:
            chord = self._chords.pop(0)
            if chord.start + chord.ticks > element.start:
                name = f'"{self._key.name_of(chord.root)}{_QUALITY_NAMES[chord.quality]}"'
        return name

    def _note(self, note: Spelled, chord: bool) -> str:
        place = (note.letter, note.octave)
        signature = self._key.signature(note.letter)
        here = self._in_octave.get(place, signature)
        everywhere = self._anywhere.get(note.letter, signature)
        plain = here == everywhere == note.alteration and note.letter not in self._from_chords
        if chord and note.alteration != signature:
            plain = False
            self._from_chords.add(note.letter)
        sign = "" if plain else _ACCIDENTALS[note.alteration]
        self._in_octave[place] = self._anywhere[note.letter] = note.alteration
        if note.octave >= 5:
            return sign + note.letter.lower() + "'" * (note.octave - 5)
        return sign + note.letter + "," * (4 - note.octave)


def _length(length: int) -> str:
    ratio = Fraction(length, _UNIT)
    above = str(ratio.numerator) if ratio.numerator != 1 else ""
    return above + (f"/{ratio.denominator}" if ratio.denominator != 1 else "")
