"""Reads ABC's music code, line after line, into bars of notes with exact lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from backend.tasks.music.abc_fields import STEPS, AbcError, Key, default_unit, read_key, read_meter, read_unit
from backend.tasks.music.score import TICKS_PER_WHOLE

MAX_NOTES = 20_000

NUMBER = r"\d{0,9}"  # longer ones mean nothing, and Python refuses to read thousands of digits
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
SILENT = ("space", "quoted", "decoration", "grace", "slur")
TUPLETS = {2: 3, 3: 2, 4: 3, 6: 2, 8: 3}


@dataclass
class AbcNote:
    """`pitch` is a MIDI number, None for a rest; `ticks` may be a fraction; `tied` to the note that follows."""

    ticks: Fraction
    pitch: int | None
    tied: bool = False


@dataclass
class Bar:
    """What stands between two barlines, and what those say. `ending` is "1", "2" or "1,3"."""

    line: int
    notes: list[AbcNote] = field(default_factory=list)
    repeat_start: bool = False
    repeat_end: bool = False
    section_end: bool = False
    ending: str = ""

    @property
    def ticks(self) -> Fraction:
        """Length of its notes and rests."""
        return sum((note.ticks for note in self.notes), Fraction(0))


class MusicReader:
    """Keeps what carries over from line to line. `left_out` collects sentences about what was not played."""

    def __init__(self, left_out: list[str]) -> None:
        self.key: Key = read_key("C")
        self.meter = (4, 4)
        self.unit = Fraction(1, 8)
        self.unit_named = False
        self.changes: list[str] = []
        self._left_out = left_out
        self._bars: list[Bar] = []
        self._bar = Bar(1)
        self._accidentals: dict[str, int] = {}
        self._letter = ""  # of the note read last
        self._voices: list[str] = []
        self._broken = Fraction(1)  # what the next note's length is multiplied by
        self._tuplet = (Fraction(1), 0)  # the factor, for how many more notes
        self._skipping = False  # within an overlay
        self._muted = False  # within a further voice
        self._count = 0

    def set_meter(self, meter: tuple[int, int]) -> None:
        """A metre brings its own unit length unless one was named."""
        self.meter = meter
        if not self.unit_named:
            self.unit = default_unit(meter)

    def read(self, text: str, line: int) -> None:
        """One line of music code. Raises AbcError."""
        at = 0
        while at < len(text):
            found = TOKENS.match(text, at)
            if not found:
                self._left_out.append(f"line {line}, column {at + 1}: '{text[at]}' was left out")
                at += 1
                continue
            if found.lastgroup == "quoted" and (len(found[0]) == 1 or not found[0].endswith('"')):
                self._left_out.append(f"line {line}, column {at + 1}: a text without end was left out, {found[0]}")
            self._token(found, line, at + 1)
            at = found.end()

    def finish(self) -> list[Bar]:
        """All bars, the last one too where no barline ends it."""
        if self._bar.notes:
            self._bars.append(self._bar)
            self._bar = Bar(0)
        return self._bars

    def _token(self, found: re.Match[str], line: int, column: int) -> None:
        kind, text = str(found.lastgroup), found[0]
        if kind == "field":
            self._inline(text[1:].rstrip("]"), line, column)
        elif self._muted:
            return
        elif kind in ("bar", "ending", "overlay"):
            self._structure(kind, text, line, column)
        elif not self._skipping and kind not in SILENT:
            self._play(kind, text, line, column)

    def _structure(self, kind: str, text: str, line: int, column: int) -> None:
        if kind == "bar":
            self._barline(text, line)
        elif kind == "ending":
            if self._bar.notes:
                self._barline("|", line)
            self._bar.ending = text.strip("[ ")
        else:
            self._skipping = True
            self._left_out.append(f"line {line}, column {column}: a second voice (&) was left out")

    def _play(self, kind: str, text: str, line: int, column: int) -> None:
        if kind == "tuplet":
            self._begin_tuplet(text, line, column)
        elif kind == "broken":
            self._break_rhythm(text, line, column)
        elif kind == "tie":
            if self._bar.notes and self._bar.notes[-1].pitch is not None:
                self._bar.notes[-1].tied = True
        else:
            self._sound(kind, text, line, column)

    def _sound(self, kind: str, text: str, line: int, column: int) -> None:
        self._count += 1
        if not self._bar.notes:
            self._bar.line = line
        if self._count > MAX_NOTES:
            raise AbcError(line, column, f"more than {MAX_NOTES} notes", "send less")
        if kind == "rests":
            self._rest_bars(text, line, column)
            return
        pitch: int | None = None
        if kind == "rest":
            length = _length(text[1:], line, column)
        elif kind == "chord":
            inner, outer = text[1:].split("]") if "]" in text else (text[1:], "")
            inner = re.sub(r'"[^"]*"|![^!]*!', "", inner)
            heads = list(re.finditer(rf"{PITCH}{LENGTH}", inner))
            if "]" not in text:
                raise AbcError(line, column, "a chord is not closed", "end it with ]")
            if not heads:
                return
            length = _length(heads[0][0], line, column) * _length(outer, line, column)
            pitch = max(self._pitch(head, line, column) for head in heads)
            if "-" in inner:
                outer += "-"
        else:
            head = re.match(PITCH, text)
            assert head
            pitch = self._pitch(head, line, column)
            length = _length(text[head.end() :], line, column)
        factor, left = self._tuplet
        ticks = length * self.unit * TICKS_PER_WHOLE * self._broken * factor
        self._tuplet = (factor, left - 1) if left > 1 else (Fraction(1), 0)
        self._broken = Fraction(1)
        tied = kind == "chord" and "-" in text
        self._bar.notes.append(AbcNote(ticks, pitch, tied))

    def _rest_bars(self, text: str, line: int, column: int) -> None:
        bars = int(text[1:] or 1)
        if not 1 <= bars <= 64:
            raise AbcError(line, column, f"{bars} bars of rest", "write 1 to 64")
        whole = Fraction(TICKS_PER_WHOLE * self.meter[0], self.meter[1])
        for _ in range(bars - 1):
            self._bar.notes.append(AbcNote(whole, None))
            self._barline("|", line)
        self._bar.notes.append(AbcNote(whole, None))

    def _pitch(self, head: re.Match[str], line: int, column: int) -> int:
        mark, letter, octaves = head[1], head[2], head[3]
        name = letter.upper()
        if mark:
            self._accidentals[name] = mark.count("^") - mark.count("_")
        elif not self._bar.notes and self._bars and self._bars[-1].notes[-1].tied and self._letter == name:
            # A tie carries its accidental over the barline.
            before = self._bars[-1].notes[-1].pitch
            if before is not None and abs(before - _plain(letter, octaves)) <= 2:
                return before
        self._letter = name
        pitch = _plain(letter, octaves) + self._accidentals.get(name, self.key.accidentals[name])
        if not 12 <= pitch <= 120:
            raise AbcError(line, column, "a note is too high or too low to play", "stay within seven octaves")
        return pitch

    def _begin_tuplet(self, text: str, line: int, column: int) -> None:
        parts = [int(part) if part else 0 for part in text[1:].split(":")]
        notes = parts[0]
        compound = self.meter[1] == 8 and self.meter[0] % 3 == 0
        into = (parts[1] if len(parts) > 1 else 0) or TUPLETS.get(notes, 3 if compound else 2)
        count = (parts[2] if len(parts) > 2 else 0) or notes
        if notes < 2:
            raise AbcError(line, column, f"({notes} is no tuplet", "write (3abc for a triplet")
        self._tuplet = (Fraction(into, notes), count)

    def _break_rhythm(self, text: str, line: int, column: int) -> None:
        if not self._bar.notes or len(text) > 3:
            raise AbcError(line, column, f"{text} stands after no note", "write it between two notes")
        short = Fraction(1, 2 ** len(text))
        first, second = (2 - short, short) if text[0] == ">" else (short, 2 - short)
        self._bar.notes[-1].ticks *= first
        self._broken = second

    def _barline(self, text: str, line: int) -> None:
        marks = re.sub(r"[\s\d,\-]|(?<=.)\[", "", text)
        ending = "".join(re.findall(r"\d[\d,\-]*$", text))
        self._skipping = False
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

    def begin(self) -> None:
        """The header has ended: voices that it names without playing them count no more."""
        if not self._count:
            self._voices, self._muted = [], False

    def voice(self, name: str, line: int) -> None:
        """From here on another voice plays; all but the first are left out."""
        if name not in self._voices:
            self._voices.append(name)
            if len(self._voices) > 1 and self._count:
                self._left_out.append(f"line {line}: voice {name} was left out, the first one counts")
        self._muted = name != self._voices[0]

    def _inline(self, text: str, line: int, column: int) -> None:
        name, value = text[0], text[2:].strip()
        if name == "V":
            self.voice((value.split() or [""])[0], line)
            return
        try:
            if name == "K" and (key := read_key(value)) != self.key:
                self.key = key
                self.changes.append("K")
            elif name == "M" and (meter := read_meter(value)) != self.meter:
                self.meter = meter
                self.changes.append("M")
            elif name == "L":
                self.unit = read_unit(value)
        except ValueError as error:
            raise AbcError(line, column, str(error), "correct the field or leave it out") from None


def _plain(letter: str, octaves: str) -> int:
    """MIDI number of a letter without accidental; C is middle C."""
    return 60 + STEPS[letter.upper()] + 12 * (letter.islower() + octaves.count("'") - octaves.count(","))


def _length(text: str, line: int, column: int) -> Fraction:
    """The number behind a note: 3, 3/2, /, //, /4."""
    found = re.search(rf"{LENGTH}$", text)
    assert found
    top, slashes, bottom = found[1], found[2], found[3]
    under = int(bottom) if bottom else 2 ** len(slashes)
    if len(slashes) > 5 or int(top or 1) > 256 or not int(top or 1) or not 0 < under <= 128:
        raise AbcError(line, column, f"'{text}' is no length of a note", "write 2, 3/2 or /2")
    return Fraction(int(top or 1), under)
