"""Notation of a part as bars of note values with ties, triplets and beams, shared by the ABC and sheet exports.

Written lengths are in 192nds of a semibreve, so that a sixty-fourth (3) is an integer. A note of the score whose ticks
are not a multiple of three belongs to a triplet, where each written length sounds for two thirds of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from backend.tasks.music.score import Melody, Note

WHOLE = 192
_BARS_PER_LINE = 4
# Sixty-fourth to breve; all but the shortest may be dotted.
_UNDOTTED = tuple(3 * 2**power for power in range(8))
_LENGTHS = tuple(sorted({*_UNDOTTED, *(length * 3 // 2 for length in _UNDOTTED if length > 3)}, reverse=True))


@dataclass(frozen=True)
class Element:
    """A note, a chord or (without pitches) a rest. `tied`: its pitches continue in the next element of the part."""

    start: int
    ticks: int
    length: int
    pitches: tuple[int, ...]
    is_tied: bool

    @property
    def is_dotted(self) -> bool:
        """Whether the note value is dotted."""
        return self.length not in _UNDOTTED


@dataclass(frozen=True)
class Group:
    """Elements under one beam. In a `triplet` they sound for two thirds of their written length."""

    elements: tuple[Element, ...]
    is_triplet: bool


@dataclass(frozen=True)
class Bar:
    """The content between two barlines, from tick `start` to `end`."""

    start: int
    end: int
    groups: tuple[Group, ...]


def notate_bars(melody: Melody, notes: Iterable[Note]) -> list[Bar]:
    """Return the bars of a part with the melody's barlines. Overlapping notes become tied chords."""
    slices = _slices(melody, tuple(notes))
    notated = []
    first = 0
    for start, end in melody.measures:
        after = bisect_left(slices, end, lo=first, key=lambda piece: piece[0])
        notated.append(Bar(start, end, tuple(_groups(melody, start, slices[first:after]))))
        first = after
    return notated


def section_ends(melody: Melody) -> set[int]:
    """Return the ticks at which a section ends and another follows. A pickup belongs to the following section."""
    firsts = [index for index in melody.sections if 0 < index < melody.bars]
    return {min(melody.bar_starts[index - 1] + melody.bar_ticks, melody.bar_starts[index]) for index in firsts}


def line_ends(melody: Melody) -> set[int]:
    """Return the ticks at which a system ends: every four bars, and at each section end."""
    sections = section_ends(melody)
    ends, count = set(), 0
    for start, following in zip(melody.bar_starts, (*melody.bar_starts, melody.end)[1:], strict=True):
        end = min(start + melody.bar_ticks, following)
        count += 1
        if count == _BARS_PER_LINE or end in sections:
            ends.add(end)
            count = 0
    return ends


def beam_ticks(melody: Melody) -> int:
    """Return the duration of a beam group: the part of a bar whose short notes share a beam."""
    top, bottom = melody.meter
    if bottom == 8 and top % 3 == 0:
        return 36
    return 48 if melody.meter == (4, 4) else 96 // bottom


_Slice = tuple[int, int, tuple[int, ...], bool]


def _slices(melody: Melody, notes: tuple[Note, ...]) -> list[_Slice]:
    """Return (start, end, pitches, is continued) for each stretch with the same sounding notes, split at barlines."""
    edges = {edge for measure in melody.measures for edge in measure}
    edges |= {edge for note in notes for edge in (note.start, note.start + note.ticks)}
    if _compound(melody):
        edges |= {beat for note in notes for beat in _beats_inside(melody, note)}
    places = sorted(edge for edge in edges if 0 <= edge <= melody.end)
    upcoming = deque(sorted(notes, key=lambda note: note.start))
    pieces: list[_Slice] = []
    active: list[Note] = []
    for start, end in zip(places, places[1:], strict=False):
        active = [note for note in active if note.start + note.ticks > start]
        while upcoming and upcoming[0].start <= start:
            active.append(upcoming.popleft())
        pitches = tuple(sorted({note.pitch for note in active}))
        pieces.append((start, end, pitches, bool(active) and all(note.start + note.ticks > end for note in active)))
    return pieces


def _compound(melody: Melody) -> bool:
    return beam_ticks(melody) == 36


def _beats_inside(melody: Melody, note: Note) -> list[int]:
    """Return the beats of a compound meter at which a note is split for legibility; none if it lasts full beats."""
    bar = bisect_right(melody.bar_starts, note.start) - 1
    if bar < 0:
        return []
    within = (note.start - melody.bar_starts[bar]) % 36
    if within == note.ticks % 36 == 0:
        return []
    first = note.start + 36 - within
    return list(range(first, note.start + note.ticks, 36))


def _groups(melody: Melody, bar_start: int, pieces: list[_Slice]) -> list[Group]:
    groups: list[Group] = []
    beam: list[Element] = []
    triplet: list[Element] = []
    triplet_ticks = 0
    unit = beam_ticks(melody)
    for piece in pieces:
        start, end = piece[0], piece[1]
        in_triplet = bool(triplet) or (end - start) % 3 != 0
        if beam and (in_triplet or (start - bar_start) % unit == 0):
            groups.append(Group(tuple(beam), False))
            beam = []
        if not in_triplet:
            beam += _elements(piece, 2)
            continue
        triplet += _elements(piece, 3)
        triplet_ticks += end - start
        if triplet_ticks % 3 == 0:
            groups.append(Group(tuple(triplet), True))
            triplet, triplet_ticks = [], 0
    if beam:
        groups.append(Group(tuple(beam), False))
    if triplet:
        groups.append(Group(tuple(triplet), True))
    return groups


def _elements(piece: _Slice, scale: int) -> list[Element]:
    """Return the tied note values of a slice, longest first. `scale` is the written length of a tick."""
    start, end, pitches, continues = piece
    remaining = (end - start) * scale
    elements: list[Element] = []
    while remaining > 0:
        length = next((length for length in _LENGTHS if length <= remaining and length % scale == 0), remaining)
        remaining -= length
        elements.append(
            Element(start, length // scale, length, pitches, bool(pitches) and (remaining > 0 or continues))
        )
        start += length // scale
    return elements
