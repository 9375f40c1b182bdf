"""Normalisation of ABC tunes to sections of full bars in a common grid.

Second endings replace first ones. If the last bar does not complement the pickup, the duration of its last note is
corrected if possible. 2/4 in sixteenths becomes 4/4 in eighths for forms that are notated both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from backend.tasks.music.abc_music import AbcNote, Bar
from backend.tasks.music.abc_reader import Tune
from backend.tasks.music.plan import MODES
from backend.tasks.music.tokens import BARS_MAX, METERS, PICKUPS, PITCHES, SECTIONS_MAX
from backend.tasks.music.tools.train.corpus import Source


class UnusableTune(Exception):
    """A tune that cannot be used. The message is the reason: bars, meter, key, grid, range or shape."""


@dataclass(frozen=True)
class Event:
    """A note or rest. `pitch` is in semitones above the tonic, None for a rest. `tie` continues the previous note."""

    pitch: int | None
    ticks: int
    tie: bool = False


@dataclass(frozen=True)
class WrittenSection:
    """A section. `pickup` is part of a bar; `bars` are full, except the last one, which is shorter by the pickup."""

    pickup: tuple[Event, ...]
    bars: tuple[tuple[Event, ...], ...]


@dataclass(frozen=True)
class WrittenTune:
    """A normalised tune. An unusable section is None."""

    name: str  # collection, number and title, as in held-out.json
    form: str
    meter: tuple[int, int]
    mode: str
    sections: tuple[WrittenSection | None, ...]


def normalise(source: Source) -> WrittenTune:
    """Return the normalised tune. Raises Unusable."""
    tune = source.tune
    meter = tune.meter or (4, 4)
    meter = (4, 4) if meter == (2, 2) else meter
    if tune.changes:
        raise UnusableTune("key" if "K" in tune.changes else "meter")
    if tune.key is None or tune.key.mode not in MODES:
        raise UnusableTune("key")
    scale = 1
    if meter == (2, 4) and (source.form in ("reel", "hornpipe", "strathspey") or _is_in_sixteenths(tune)):
        meter, scale = (4, 4), 2
    if meter not in METERS:
        raise UnusableTune("meter")
    length = 96 * meter[0] // meter[1]
    pieces = _pieces(_split_sections(tune.bars), length, scale)
    if not 1 <= len(pieces) <= SECTIONS_MAX:
        raise UnusableTune("shape")
    tonic = _tonic([piece for piece in pieces if piece], tune.key.pitch_class)
    sections = tuple(_section(piece, tonic) if piece else None for piece in pieces)
    if sum(len(section.bars) for section in sections if section) < 4:
        raise UnusableTune("bars" if None in sections else "shape")
    return WrittenTune(source.name, source.form, meter, tune.key.mode, sections)


def _is_in_sixteenths(tune: Tune) -> bool:
    """Whether most notes are sixteenths, as in a reel notated in 2/4."""
    notes = [note for bar in tune.bars for note in bar.notes]
    return sum(note.ticks <= 9 for note in notes) * 2 > len(notes)


def _split_sections(bars: list[Bar]) -> list[list[Bar]]:
    """Return the bars of each section, with first endings replaced by second ones."""
    sections: list[list[Bar]] = [[]]
    first: list[Bar] = []  # the first ending, dropped once a second one follows
    number = ""
    for bar in bars:
        number = bar.ending[:1] or number
        if bar.ending[:1] == "2" and sections[-1] == [] and len(sections) > 1:
            sections.pop()
            del sections[-1][len(sections[-1]) - len(first) :]
            first = []
        elif bar.repeat_start and sections[-1]:
            sections.append([])
        if bar.ending[:1] == "1":
            first = []
        sections[-1].append(bar)
        if number == "1":
            first.append(bar)
        if bar.repeat_end or bar.section_end:
            sections.append([])
            number = ""
    return [section for section in sections if section]


Notes = list[tuple[int | None, int, bool]]  # pitch, ticks, whether tied to the next


def _notes(bar: list[AbcNote], scale: int) -> Notes:
    notes: Notes = []
    for note in bar:
        ticks = note.ticks * scale
        if ticks.denominator != 1:
            raise UnusableTune("grid")
        notes.append((note.pitch, int(ticks), note.tied))
    return notes


@dataclass
class Piece:
    """A section with absolute pitches: notes with their ticks."""

    pickup: Notes
    bars: list[Notes]


def _length(notes: Notes) -> int:
    return sum(ticks for _, ticks, _ in notes)


def _pieces(sections: list[list[Bar]], length: int, scale: int) -> list[Piece | None]:
    """Return the usable sections; None for each unusable one."""
    pieces: list[Piece | None] = []
    carried: Notes = []  # the pickup of the next section
    for bars in sections:
        parts = [_notes(bar.notes, scale) for bar in bars]
        parts = [cut for part in parts for cut in _split_bar(part, length)]
        if len(parts) == 1 and _length(parts[0]) < length:
            carried = parts[0]
            continue
        if carried and _length(parts[0]) == length:
            parts.insert(0, carried)
        try:
            piece, carried = _join_bars(parts, length)
            pieces += _split_long_section(piece)
        except UnusableTune:
            pieces.append(None)
            carried = []
    return pieces


def _split_bar(notes: Notes, length: int) -> list[Notes]:
    """Split a bar that lacks barlines into several bars."""
    ticks_so_far = 0
    for number, (_, ticks, _) in enumerate(notes):
        if ticks_so_far == length:
            return [notes[:number], *_split_bar(notes[number:], length)]
        ticks_so_far += ticks
    return [notes]


def _join_bars(parts: list[Notes], length: int) -> tuple[Piece, Notes]:
    """Join split bars, separate the pickup and fit the last bar. Returns the section and the next section's pickup."""
    pickup: Notes = []
    if len(parts) > 1 and _length(parts[0]) < length and _length(parts[0]) + _length(parts[1]) != length:
        pickup, *parts = parts
    joined: list[Notes] = []
    for part in parts:
        if joined and _length(joined[-1]) < length and _length(joined[-1]) + _length(part) <= length:
            joined[-1] = joined[-1] + part
        else:
            joined.append(part)
    beats = _length(pickup)
    if any(_length(part) != length for part in joined[:-1]) or beats not in PICKUPS or beats >= length:
        raise UnusableTune("bars")
    last, following = joined[-1], Notes()
    if _length(last) == length:
        while _length(following) < beats:
            following.insert(0, last[-1])
            last = last[:-1]
        if _length(following) != beats or not last:
            last, following = joined[-1], []
    surplus = _length(last) - (length - beats)
    pitch, ticks, tied = last[-1]
    if not 0 < ticks - surplus <= length or abs(surplus) > length // 2:
        raise UnusableTune("bars")
    joined[-1] = [*last[:-1], (pitch, ticks - surplus, tied)]
    return Piece(pickup, joined), following


def _split_long_section(piece: Piece) -> list[Piece]:
    """Split a section of sixteen or more bars into sections of eight, each with its own pickup."""
    count = len(piece.bars)
    if count <= BARS_MAX and count != 16:
        return [piece]
    if count % 8:
        raise UnusableTune("shape")
    pieces = []
    pickup, beats = piece.pickup, _length(piece.pickup)
    for first_bar in range(0, count, 8):
        bars = [list(bar) for bar in piece.bars[first_bar : first_bar + 8]]
        following: Notes = []
        if beats and first_bar + 8 < count:
            while _length(following) < beats:
                following.insert(0, bars[-1].pop())
            if _length(following) != beats or not bars[-1]:
                if count == 16:
                    return [piece]
                raise UnusableTune("shape")
        pieces.append(Piece(pickup, bars))
        pickup = following
    return pieces


def _tonic(pieces: list[Piece], pitch_class: int) -> int:
    """Return the tonic that is 0 to 11 semitones below the tune's mean pitch, like D or G on a fiddle."""
    sounding = [
        (pitch, ticks) for piece in pieces for bar in piece.bars for pitch, ticks, _ in bar if pitch is not None
    ]
    if not sounding:
        raise UnusableTune("shape")
    mean = Fraction(sum(pitch * ticks for pitch, ticks in sounding), sum(ticks for _, ticks in sounding))
    return int(mean - pitch_class) // 12 * 12 + pitch_class


def _section(piece: Piece, tonic: int) -> WrittenSection:
    tied = False

    def events(notes: Notes) -> tuple[Event, ...]:
        nonlocal tied
        result = []
        for pitch, ticks, to_next in notes:
            relative = None if pitch is None else pitch - tonic
            if relative is not None and relative not in PITCHES:
                raise UnusableTune("range")
            result.append(Event(relative, ticks, tied and relative is not None))
            tied = to_next
        return tuple(result)

    return WrittenSection(events(piece.pickup), tuple(events(bar) for bar in piece.bars))
