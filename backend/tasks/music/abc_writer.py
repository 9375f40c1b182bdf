"""Export of a score as ABC 2.1: melody and accompaniment as voices, with repeats written out.

Accidentals are written so that programs with different readings of the standard play the same notes: wherever an
accidental that holds for one octave and one that holds for all octaves would give different pitches, and always in and
after chords, since some programs forget the accidentals of chords.
"""

from __future__ import annotations

from fractions import Fraction

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.notation import WHOLE, Bar, Element, Group, line_ends, notate_bars, section_ends
from backend.tasks.music.score import TICKS_PER_WHOLE, Chord, Melody, Part, Score
from backend.tasks.music.spelling import Key, SpelledNote, key_of

_UNIT = WHOLE // 8  # L:1/8
_ACCIDENTALS = {-2: "__", -1: "_", 0: "=", 1: "^", 2: "^^"}
_MODE_NAMES = {"major": "", "minor": "m", "dorian": "dor", "mixolydian": "mix"}
_QUALITY_NAMES = {"maj": "", "min": "m", "dim": "dim"}
_MAX_BEAT_DIVISION = 256  # a fractional tempo is written as an integer tempo for a fraction of the beat, down to this
_MAX_TEMPO_ERROR_S = 0.002  # largest error of the last note's time after rounding the tempo


def to_text(score: Score) -> str:
    """Return the tune as ABC text that ends with a newline."""
    melody = score.melody
    key = key_of(melody.tonic, melody.mode)
    top, bottom = melody.meter
    lines = ["%abc-2.1", "X:1", f"T:{_escape(score.title)}", f"R:{_escape(melody.form)}"]
    lines += [f"N:{_escape(name)}: {_escape(value)}" for name, value in score.credits.items()]
    lines += [f"M:{top}/{bottom}", "L:1/8", f"Q:{_format_tempo(score)}"]
    lines.append(f"K:{key.tonic}{_MODE_NAMES[melody.mode]}")
    for number, part in enumerate(score.parts, 1):
        instrument = INSTRUMENTS[part.instrument]
        clef = " clef=bass" if part.instrument == "bass" else ""
        lines += [f'V:{number} name="{instrument.label}"{clef}', f"%%MIDI program {instrument.program}"]
        if number == 1 and score.chords:
            lines.append("%%MIDI gchordoff")  # otherwise players add chords to the written ones
        if melody.form == "hornpipe":
            lines.append("%%MIDI ratio 1 1")  # otherwise abc2midi swings every hornpipe
        lines += _write_voice(melody, part, key, score.chords if number == 1 else ())
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Return the text as one line, with escaped comment signs."""
    return " ".join(text.split()).replace("%", r"\%")


def _format_tempo(score: Score) -> str:
    """Return the tempo as an integer, if necessary of a fraction of the beat: many programs reject decimals."""
    part = 1
    while (
        part < _MAX_BEAT_DIVISION
        and abs(round(score.tempo_bpm * part) / part / score.tempo_bpm - 1) * score.seconds > _MAX_TEMPO_ERROR_S
    ):
        part *= 2
    beat = Fraction(score.beat_ticks, TICKS_PER_WHOLE) / part
    return f"{beat.numerator}/{beat.denominator}={round(score.tempo_bpm * part)}"


def _write_voice(melody: Melody, part: Part, key: Key, chords: tuple[Chord, ...]) -> list[str]:
    writer = _VoiceWriter(key, chords)
    notated = notate_bars(melody, part.notes)
    sections, breaks = section_ends(melody), line_ends(melody)
    lines, line = [], ""
    for bar in notated:
        line += writer.bar(bar)
        line += " |]" if bar is notated[-1] else " || " if bar.end in sections else " | "
        if bar is notated[-1] or bar.end in breaks:
            lines.append(line.rstrip())
            line = ""
    return lines


class _VoiceWriter:
    """Writes one voice bar by bar and tracks the accidentals in force."""

    def __init__(self, key: Key, chords: tuple[Chord, ...]) -> None:
        self._key = key
        self._chords = list(chords)
        self._in_octave: dict[tuple[str, int], int] = {}
        self._any_octave: dict[str, int] = {}
        self._from_chords: set[str] = set()

    def bar(self, bar: Bar) -> str:
        self._in_octave.clear()
        self._any_octave.clear()
        self._from_chords.clear()
        return " ".join(self._group(group) for group in bar.groups)

    def _group(self, group: Group) -> str:
        count = len(group.elements)
        before = "" if not group.is_triplet else "(3" if count == 3 else f"(3:2:{count}"
        return before + "".join(self._element(element) for element in group.elements)

    def _element(self, element: Element) -> str:
        length = _format_length(element.length)
        symbol = self._symbol(element)
        if not element.pitches:
            return f"{symbol}z{length}"
        chord = len(element.pitches) > 1
        names = [self._note(self._key.spell(pitch), chord) for pitch in element.pitches]
        tie = "-" if element.is_tied else ""
        written = f"[{''.join(names)}]" if chord else names[0]
        return f"{symbol}{written}{length}{tie}"

    def _symbol(self, element: Element) -> str:
        """Return the symbol of the chord that started at this element or since the previous one; empty if none."""
        name = ""
        while self._chords and self._chords[0].start <= element.start:
            chord = self._chords.pop(0)
            if chord.start + chord.ticks > element.start:
                name = f'"{self._key.name_of(chord.root)}{_QUALITY_NAMES[chord.quality]}"'
        return name

    def _note(self, note: SpelledNote, chord: bool) -> str:
        position = (note.letter, note.octave)
        signature = self._key.signature(note.letter)
        in_octave = self._in_octave.get(position, signature)
        in_any_octave = self._any_octave.get(note.letter, signature)
        is_implied = in_octave == in_any_octave == note.alteration and note.letter not in self._from_chords
        if chord and note.alteration != signature:
            is_implied = False
            self._from_chords.add(note.letter)
        sign = "" if is_implied else _ACCIDENTALS[note.alteration]
        self._in_octave[position] = self._any_octave[note.letter] = note.alteration
        if note.octave >= 5:
            return sign + note.letter.lower() + "'" * (note.octave - 5)
        return sign + note.letter + "," * (4 - note.octave)


def _format_length(length: int) -> str:
    ratio = Fraction(length, _UNIT)
    above = str(ratio.numerator) if ratio.numerator != 1 else ""
    return above + (f"/{ratio.denominator}" if ratio.denominator != 1 else "")
