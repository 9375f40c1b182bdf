"""A parser for ABC music code: lines of text become bars of notes with exact durations."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from backend.tasks.music.abc_fields import STEPS, AbcError, Key, default_unit, parse_key, parse_meter, parse_unit
from backend.tasks.music.score import TICKS_PER_WHOLE

MAX_NOTES = 20_000

NUMBER = r"\d{0,9}"  # bounded, since Python rejects integers with thousands of digits
LENGTH = rf"({NUMBER})(/*)({NUMBER})"
PITCH = r"(\^\^|\^|__|_|=)?([A-Ga-g])([,']*)"
TOKENS = re.compile(
    r"(?P<space>[\s`\\$*;?@]+)"
    r"|(?P<quoted>\"[^\"]*\"?)"
    r"|(?P<decoration>![^!|]*!|\+[A-Za-z0-9().<>]+\+|[.~H-Wh-w]|y[\d/]*)"
    r"|(?P<grace>\{[^}]*\}?)"
    r"|(?P<field>\[[A-Za-z]:[^\]]*\]?)"
    r"|(?P<ending>\[\s*(?=\d)[\d,\-]+)"
    rf"|(?P<chord>\[(?=[^\]|]*[A-Ga-gzx])[^\]|]*\]?{LENGTH})"
    r"|(?P<bar>\[?[:|\]]+(?:\s*\[?\s*\d[\d,\-]*(?![\d/]))?)"
    rf"|(?P<rest>[zx]{LENGTH})|(?P<rests>[ZX]({NUMBER}))"
    rf"|(?P<note>{PITCH}{LENGTH})"
    rf"|(?P<tuplet>\((\d)(?::({NUMBER}))?(?::({NUMBER}))?)"
    r"|(?P<broken>>+|<+)|(?P<tie>-)|(?P<slur>[()])|(?P<overlay>&)"
)
IGNORED_TOKENS = ("space", "quoted", "decoration", "grace", "slur")
TUPLETS = {2: 3, 3: 2, 4: 3, 6: 2, 8: 3}


@dataclass
class AbcNote:
    """A note or rest. `pitch` is a MIDI note number, None for a rest. `tied` joins it to the next note."""

    ticks: Fraction
    pitch: int | None
    tied: bool = False


@dataclass
class Bar:
    """A bar with the marks of its barlines. `ending` is the volta, such as "1", "2" or "1,3". `line` counts from 1."""

    line: int
    notes: list[AbcNote] = field(default_factory=list)
    repeat_start: bool = False
    repeat_end: bool = False
    section_end: bool = False
    ending: str = ""

    @property
    def ticks(self) -> Fraction:
        """The duration of its notes and rests."""
        return sum((note.ticks for note in self.notes), Fraction(0))


class AbcMusicParser:
    """Parses music code line by line, with the state that carries over between lines.

    It appends a message to `omissions` for everything that it skips.
    """

    def __init__(self, omissions: list[str]) -> None:
        self.key: Key = parse_key("C")
        self.meter = (4, 4)
        self.unit = Fraction(1, 8)
        self.unit_named = False
        self.changes: list[str] = []
        self._omissions = omissions
        self._bars: list[Bar] = []
        self._bar = Bar(1)
        self._accidentals: dict[str, int] = {}
        self._letter = ""  # of the last note
        self._voices: list[str] = []
        self._broken_factor = Fraction(1)  # factor for the duration of the next note, in broken rhythm
        self._tuplet = (Fraction(1), 0)  # factor for durations, number of notes left
        self._in_overlay = False
        self._in_other_voice = False
        self._note_count = 0

    def set_meter(self, meter: tuple[int, int]) -> None:
        """Set the meter, and its default unit length unless the text sets one."""
        self.meter = meter
        if not self.unit_named:
            self.unit = default_unit(meter)

    def read(self, text: str, line: int) -> None:
        """Parse one line of music code. Raises AbcError."""
        position = 0
        while position < len(text):
            match = TOKENS.match(text, position)
            if not match:
                self._omissions.append(f"line {line}, column {position + 1}: '{text[position]}' was skipped")
                position += 1
                continue
            if match.lastgroup == "quoted" and (len(match[0]) == 1 or not match[0].endswith('"')):
                self._omissions.append(
                    f"line {line}, column {position + 1}: an unterminated text was skipped, {match[0]}"
                )
            self._dispatch(match, line, position + 1)
            position = match.end()

    def finish(self) -> list[Bar]:
        """Return all bars, including a last one without a barline."""
        if self._bar.notes:
            self._bars.append(self._bar)
            self._bar = Bar(0)
        return self._bars

    def _dispatch(self, match: re.Match[str], line: int, column: int) -> None:
        kind, text = str(match.lastgroup), match[0]
        if kind == "field":
            self._inline_field(text[1:].rstrip("]"), line, column)
        elif self._in_other_voice:
            return
        elif kind in ("bar", "ending", "overlay"):
            self._structure(kind, text, line, column)
        elif not self._in_overlay and kind not in IGNORED_TOKENS:
            self._music_token(kind, text, line, column)

    def _structure(self, kind: str, text: str, line: int, column: int) -> None:
        if kind == "bar":
            self._barline(text, line)
        elif kind == "ending":
            if self._bar.notes:
                self._barline("|", line)
            self._bar.ending = text.strip("[ ")
        else:
            self._in_overlay = True
            self._omissions.append(f"line {line}, column {column}: a second voice (&) was skipped")

    def _music_token(self, kind: str, text: str, line: int, column: int) -> None:
        if kind == "tuplet":
            self._begin_tuplet(text, line, column)
        elif kind == "broken":
            self._break_rhythm(text, line, column)
        elif kind == "tie":
            if self._bar.notes and self._bar.notes[-1].pitch is not None:
                self._bar.notes[-1].tied = True
        else:
            self._add_note(kind, text, line, column)

    def _add_note(self, kind: str, text: str, line: int, column: int) -> None:
        self._note_count += 1
        if not self._bar.notes:
            self._bar.line = line
        if self._note_count > MAX_NOTES:
            raise AbcError(line, column, f"more than {MAX_NOTES} notes", "send less")
        if kind == "rests":
            self._rest_bars(text, line, column)
            return
        pitch: int | None = None
        if kind == "rest":
            length = _parse_length(text[1:], line, column)
        elif kind == "chord":
            inner, outer = text[1:].split("]") if "]" in text else (text[1:], "")
            inner = re.sub(r'"[^"]*"|![^!]*!', "", inner)
            heads = list(re.finditer(rf"{PITCH}{LENGTH}", inner))
            if "]" not in text:
                raise AbcError(line, column, "a chord is not closed", "end it with ]")
            if not heads:
                return
            length = _parse_length(heads[0][0], line, column) * _parse_length(outer, line, column)
            pitch = max(self._pitch(head, line, column) for head in heads)
            if "-" in inner:
                outer += "-"
        else:
            head = re.match(PITCH, text)
            assert head
            pitch = self._pitch(head, line, column)
            length = _parse_length(text[head.end() :], line, column)
        factor, left = self._tuplet
        ticks = length * self.unit * TICKS_PER_WHOLE * self._broken_factor * factor
        self._tuplet = (factor, left - 1) if left > 1 else (Fraction(1), 0)
        self._broken_factor = Fraction(1)
        tied = kind == "chord" and "-" in text
        self._bar.notes.append(AbcNote(ticks, pitch, tied))

    def _rest_bars(self, text: str, line: int, column: int) -> None:
        bars = int(text[1:] or 1)
        if not 1 <= bars <= 64:
            raise AbcError(line, column, f"{bars} bars of rest", "write 1 to 64")
        bar_ticks = Fraction(TICKS_PER_WHOLE * self.meter[0], self.meter[1])
        for _ in range(bars - 1):
            self._bar.notes.append(AbcNote(bar_ticks, None))
            self._barline("|", line)
        self._bar.notes.append(AbcNote(bar_ticks, None))

    def _pitch(self, head: re.Match[str], line: int, column: int) -> int:
        accidental, letter, octaves = head[1], head[2], head[3]
        name = letter.upper()
        if accidental:
            self._accidentals[name] = accidental.count("^") - accidental.count("_")
        elif not self._bar.notes and self._bars and self._bars[-1].notes[-1].tied and self._letter == name:
            # An accidental holds across a barline for a tied note.
            tied_pitch = self._bars[-1].notes[-1].pitch
            if tied_pitch is not None and abs(tied_pitch - _natural_pitch(letter, octaves)) <= 2:
                return tied_pitch
        self._letter = name
        pitch = _natural_pitch(letter, octaves) + self._accidentals.get(name, self.key.accidentals[name])
        if not 12 <= pitch <= 120:
            raise AbcError(line, column, "a note is out of range", "write notes within seven octaves")
        return pitch

    def _begin_tuplet(self, text: str, line: int, column: int) -> None:
        parts = [int(part) if part else 0 for part in text[1:].split(":")]
        notes = parts[0]
        compound = self.meter[1] == 8 and self.meter[0] % 3 == 0
        into = (parts[1] if len(parts) > 1 else 0) or TUPLETS.get(notes, 3 if compound else 2)
        count = (parts[2] if len(parts) > 2 else 0) or notes
        if notes < 2:
            raise AbcError(line, column, f"({notes} is not a tuplet", "write (3abc for a triplet")
        self._tuplet = (Fraction(into, notes), count)

    def _break_rhythm(self, text: str, line: int, column: int) -> None:
        if not self._bar.notes or len(text) > 3:
            raise AbcError(line, column, f"there is no note before {text}", "write it between two notes")
        short = Fraction(1, 2 ** len(text))
        first, second = (2 - short, short) if text[0] == ">" else (short, 2 - short)
        self._bar.notes[-1].ticks *= first
        self._broken_factor = second

    def _barline(self, text: str, line: int) -> None:
        marks = re.sub(r"[\s\d,\-]|(?<=.)\[", "", text)
        ending = "".join(re.findall(r"\d[\d,\-]*$", text))
        self._in_overlay = False
        self._accidentals = {}
        ends = marks.startswith(":")
        starts = marks.endswith(":")
        if self._bar.notes:
            self._bars.append(self._bar)
            self._bar = Bar(line)
        if self._bars:
            self._bars[-1].repeat_end |= ends
            self._bars[-1].section_end |= ends or starts or "||" in marks or "]" in marks or "[|" in marks
        self._bar.line = line
        self._bar.repeat_start |= starts
        self._bar.ending = ending or self._bar.ending

    def end_header(self) -> None:
        """End the header. Forget voices that it declares without notes."""
        if not self._note_count:
            self._voices, self._in_other_voice = [], False

    def select_voice(self, name: str, line: int) -> None:
        """Switch to a voice. All voices but the first are skipped."""
        if name not in self._voices:
            self._voices.append(name)
            if len(self._voices) > 1 and self._note_count:
                self._omissions.append(f"line {line}: voice {name} was skipped, only the first voice is used")
        self._in_other_voice = name != self._voices[0]

    def _inline_field(self, text: str, line: int, column: int) -> None:
        name, value = text[0], text[2:].strip()
        if name == "V":
            self.select_voice((value.split() or [""])[0], line)
            return
        try:
            if name == "K" and (key := parse_key(value)) != self.key:
                self.key = key
                self.changes.append("K")
            elif name == "M" and (meter := parse_meter(value)) != self.meter:
                self.meter = meter
                self.changes.append("M")
            elif name == "L":
                self.unit = parse_unit(value)
        except ValueError as error:
            raise AbcError(line, column, str(error), "correct or remove the field") from None


def _natural_pitch(letter: str, octaves: str) -> int:
    """Return the MIDI note number of a letter without accidental; C is middle C, 60."""
    return 60 + STEPS[letter.upper()] + 12 * (letter.islower() + octaves.count("'") - octaves.count(","))


def _parse_length(text: str, line: int, column: int) -> Fraction:
    """Parse the length after a note: 3, 3/2, /, //, /4. Raises AbcError."""
    match = re.search(rf"{LENGTH}$", text)
    assert match
    top, slashes, bottom = match[1], match[2], match[3]
    divisor = int(bottom) if bottom else 2 ** len(slashes)
    if len(slashes) > 5 or int(top or 1) > 256 or not int(top or 1) or not 0 < divisor <= 128:
        raise AbcError(line, column, f"'{text}' is not a note length", "write 2, 3/2 or /2")
    return Fraction(int(top or 1), divisor)
