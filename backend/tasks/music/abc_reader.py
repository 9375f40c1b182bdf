"""A reader for ABC notation: files of tunes, and typed phrases with or without a header.

It follows the ABC 2.1 standard (abcnotation.com/wiki/abc:standard:v2.1) and accepts the dialects of old collections:
both decoration styles, odd barlines, missing newlines. Of a chord it uses the highest note. It skips grace notes and
lyrics, and reports overlays and other voices as omissions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from backend.tasks.music.abc_fields import AbcError, Key, parse_key, parse_meter, parse_unit
from backend.tasks.music.abc_music import AbcMusicParser, Bar

T = TypeVar("T")
KEY_REMEDY = "name a key such as D, Am, Ador or Amix"
MAX_CHARACTERS = 200_000
# A field line, including text fields and their continuation "+:". A line such as "d:|" is music code.
FIELD = re.compile(r"(?![A-Ga-gz]:[|:])([A-Za-z+]):(.*)")
_COMMENT = re.compile(r'("[^"]*")|(?<!\\)%.*')  # a quoted text may contain %
_SHIFTED = re.compile(r"\b(?:octave|transpose|shift|sound|score)\s*=|[+-]8\b")


@dataclass
class Tune:
    """A tune as written, with repeats as marks on its bars. `omissions` lists what was skipped, with line numbers.

    `meter` and `key` are optional: None if the text has none; then it was parsed with 4/4 and C major, or the caller's.
    """

    number: str = ""
    titles: list[str] = field(default_factory=list)
    rhythm: str = ""
    meter: tuple[int, int] | None = None
    key: Key | None = None
    bars: list[Bar] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # fields that change within the tune: "K", "M"
    transcribers: list[str] = field(default_factory=list)
    omissions: list[str] = field(default_factory=list)

    @property
    def ticks(self) -> Fraction:
        """The duration as written, 96 ticks per whole note."""
        return sum((bar.ticks for bar in self.bars), Fraction(0))


def read_tunes(text: str) -> Iterator[Tune | AbcError]:
    """Yield every tune of a file (each starts with X:), or the error if it cannot be parsed."""
    lines = _split_lines(text)
    starts = [at for at, line in enumerate(lines) if re.match(r"X:\s*\d", line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            yield _parse_tune(lines[start:end], start + 1, None, None)
        except AbcError as error:
            yield error


def read_phrase(text: str, meter: tuple[int, int] | None = None, key: str | None = None) -> Tune:
    """Parse one phrase. `meter` and `key` are the defaults for a text without M: or K:. Raises AbcError."""
    if len(text) > MAX_CHARACTERS:
        raise AbcError(1, 1, f"{len(text)} characters are too many", "send only the opening phrase")
    lines = _split_lines(text)
    starts = [at for at, line in enumerate(lines) if re.match(r"X:\s*\d", line)]
    if len(starts) > 1:
        raise AbcError(starts[1] + 1, 1, "a second tune starts here", "send only one tune")
    omissions = _remove_prose(lines)
    tune = _parse_tune(lines, 1, meter, key)
    tune.omissions[:0] = omissions
    if not any(note.pitch is not None for bar in tune.bars for note in bar.notes):
        raise AbcError(1, 1, "the phrase has no notes", "write notes such as G2 B d after the K: line")
    return tune


def _remove_prose(lines: list[str]) -> list[str]:
    """Blank the lines of prose in the header (X: to K:) and after the empty line that ends the tune.

    Returns a message for each removed line. A text without X: and K: is not changed.
    """
    fields = [found[1] if (found := FIELD.match(line)) else "" for line in lines]
    if "X" not in fields or "K" not in fields:
        return []
    key, omissions = fields.index("K"), []
    end = next(
        (index for index in range(key + 1, len(lines)) if not lines[index].strip() and any(lines[key + 1 : index])),
        None,
    )
    for index, line in enumerate(lines):
        ended = end is not None and index > end
        if line.strip() and not line.startswith("%") and (ended or (index < key and not fields[index])):
            omissions.append(f"line {index + 1} was skipped, it is {'after the end of the tune' if ended else 'prose'}")
            lines[index] = ""
    return omissions


def _split_lines(text: str) -> list[str]:
    if "\n" not in text and "\\n" in text:  # typed in a shell, which does not expand \n
        text = text.replace("\\n", "\n")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _parse_tune(lines: list[str], first: int, meter: tuple[int, int] | None, key: str | None) -> Tune:
    tune = Tune()
    reader = AbcMusicParser(tune.omissions)
    reader.key = _parse_value(parse_key, key or "C", first, KEY_REMEDY)
    reader.set_meter(meter or (4, 4))
    for number, line in enumerate(lines, first):
        code = _COMMENT.sub(lambda match: match[1] or "", line).rstrip()
        match = FIELD.match(code)
        if match and match[1] == "V":
            reader.select_voice((match[2].split() or [""])[0], number)
        elif match:
            _parse_field(tune, reader, match[1], match[2].strip(), number)
        elif code:
            reader.read(code, number)
    tune.bars = reader.finish()
    tune.changes += reader.changes
    return tune


def _parse_field(tune: Tune, reader: AbcMusicParser, name: str, value: str, line: int) -> None:
    """Apply a header field to the tune. Text fields, such as w: and +:, are ignored."""
    if name == "L":
        reader.unit = _parse_value(parse_unit, value, line, "write it as L:1/8")
        reader.unit_named = True
    elif name == "M":
        reader.set_meter(_parse_value(parse_meter, value, line, "write it as M:6/8"))
        if tune.meter not in (None, reader.meter):
            tune.changes.append("M")
        tune.meter = tune.meter or reader.meter
    elif name == "K":
        _set_key(tune, reader, value, line)
    elif name == "X":
        tune.number = value
    elif name == "T":
        tune.titles.append(value)
    elif name == "R":
        tune.rhythm = value.lower()
    elif name == "Z":
        tune.transcribers.append(value)


def _set_key(tune: Tune, reader: AbcMusicParser, value: str, line: int) -> None:
    """Apply K:. The first one ends the header."""
    reader.key = _parse_value(parse_key, value, line, KEY_REMEDY)
    if _SHIFTED.search(value):
        tune.omissions.append(f"line {line}: the transposition was skipped")
    if tune.key is None:
        reader.end_header()
        tune.key = reader.key
    elif tune.key != reader.key:
        tune.changes.append("K")


def _parse_value(read: Callable[[str], T], value: str, line: int, remedy: str) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise AbcError(line, 1, str(error), remedy) from None
