"""Reads ABC: a file of tunes, or the opening phrase that somebody typed, with or without a header.

Tolerant of the dialects in old collections: both decoration styles, chords (their highest note counts), grace notes and
words (left out), overlays and further voices (left out and said), odd barlines, missing newlines. Follows
the ABC 2.1 standard (abcnotation.com/wiki/abc:standard:v2.1) where it says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from backend.tasks.music.abc_fields import AbcError, Key, read_key, read_meter, read_unit
from backend.tasks.music.abc_music import Bar, MusicReader

T = TypeVar("T")
KEY_REMEDY = "name a key such as D, Am, Ador or Amix"
MAX_CHARACTERS = 200_000
# Fields that hold words are never played, nor is what "+:" adds to them. A line such as "d:|" is music.
FIELD = re.compile(r"(?![A-Ga-gz]:[|:])([A-Za-z+]):(.*)")
_COMMENT = re.compile(r'("[^"]*")|(?<!\\)%.*')  # a text may have a % of its own
_SHIFTED = re.compile(r"\b(?:octave|transpose|shift|sound|score)\s*=|[+-]8\b")


@dataclass
class Tune:
    """A tune as written: repeats are marks on its bars. `notes` says what was left out, with line numbers.

    `meter` and `key` are None where the text names none; then 4/4 and C major were used to read it.
    """

    number: str = ""
    titles: list[str] = field(default_factory=list)
    rhythm: str = ""
    meter: tuple[int, int] | None = None
    key: Key | None = None
    bars: list[Bar] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # fields that changed within the music: "K", "M"
    transcribers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ticks(self) -> Fraction:
        """Length as written, 96 to a whole note."""
        return sum((bar.ticks for bar in self.bars), Fraction(0))


def read_tunes(text: str) -> Iterator[Tune | AbcError]:
    """Every tune of a file that begins with X:, or why it could not be read."""
    lines = _lines(text)
    starts = [at for at, line in enumerate(lines) if re.match(r"X:\s*\d", line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            yield _read(lines[start:end], start + 1, None, None)
        except AbcError as error:
            yield error


def read_phrase(text: str, meter: tuple[int, int] | None = None, key: str | None = None) -> Tune:
    """One phrase; `meter` and `key` (as after K:) count where the text has no M: or K:. Raises AbcError."""
    if len(text) > MAX_CHARACTERS:
        raise AbcError(1, 1, f"{len(text)} characters are too many", "send the opening phrase alone")
    lines = _lines(text)
    starts = [at for at, line in enumerate(lines) if re.match(r"X:\s*\d", line)]
    if len(starts) > 1:
        raise AbcError(starts[1] + 1, 1, "a second tune begins here", "send one tune")
    left_out = _leave_words(lines)
    tune = _read(lines, 1, meter, key)
    tune.notes[:0] = left_out
    if not any(note.pitch is not None for bar in tune.bars for note in bar.notes):
        raise AbcError(1, 1, "there is no note in it", "write notes such as G2 B d after the K: line")
    return tune


def _leave_words(lines: list[str]) -> list[str]:
    """Empties the lines that are no music where X: and K: tell: in the header, and behind the line that ends the tune.

    Returns what was left out, in sentences.
    """
    fields = [found[1] if (found := FIELD.match(line)) else "" for line in lines]
    if "X" not in fields or "K" not in fields:
        return []
    key, left_out = fields.index("K"), []
    end = next((at for at in range(key + 1, len(lines)) if not lines[at].strip() and any(lines[key + 1 : at])), None)
    for at, line in enumerate(lines):
        ended = end is not None and at > end
        if line.strip() and not line.startswith("%") and (ended or (at < key and not fields[at])):
            left_out.append(f"line {at + 1} was left out, it is {'behind the end of the tune' if ended else 'words'}")
            lines[at] = ""
    return left_out


def _lines(text: str) -> list[str]:
    if "\n" not in text and "\\n" in text:  # typed in a shell
        text = text.replace("\\n", "\n")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _read(lines: list[str], first: int, meter: tuple[int, int] | None, key: str | None) -> Tune:
    tune = Tune()
    reader = MusicReader(tune.notes)
    reader.key = _field(read_key, key or "C", first, KEY_REMEDY)
    reader.set_meter(meter or (4, 4))
    for number, line in enumerate(lines, first):
        bare = _COMMENT.sub(lambda found: found[1] or "", line).rstrip()
        found = FIELD.match(bare)
        if found and found[1] == "V":
            reader.voice((found[2].split() or [""])[0], number)
        elif found:
            _header(tune, reader, found[1], found[2].strip(), number)
        elif bare:
            reader.read(bare, number)
    tune.bars = reader.finish()
    tune.changes += reader.changes
    return tune


def _header(tune: Tune, reader: MusicReader, name: str, value: str, line: int) -> None:
    """Takes a field; those that hold words alone, such as w: and +:, are left out."""
    if name == "L":
        reader.unit = _field(read_unit, value, line, "write it as L:1/8")
        reader.unit_named = True
    elif name == "M":
        reader.set_meter(_field(read_meter, value, line, "write it as M:6/8"))
        if tune.meter not in (None, reader.meter):
            tune.changes.append("M")
        tune.meter = tune.meter or reader.meter
    elif name == "K":
        _key(tune, reader, value, line)
    elif name == "X":
        tune.number = value
    elif name == "T":
        tune.titles.append(value)
    elif name == "R":
        tune.rhythm = value.lower()
    elif name == "Z":
        tune.transcribers.append(value)


def _key(tune: Tune, reader: MusicReader, value: str, line: int) -> None:
    """The first K: ends the header."""
    reader.key = _field(read_key, value, line, KEY_REMEDY)
    if _SHIFTED.search(value):
        tune.notes.append(f"line {line}: the transposition was left out")
    if tune.key is None:
        reader.begin()
        tune.key = reader.key
    elif tune.key != reader.key:
        tune.changes.append("K")


def _field(read: Callable[[str], T], value: str, line: int, remedy: str) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise AbcError(line, 1, str(error), remedy) from None
