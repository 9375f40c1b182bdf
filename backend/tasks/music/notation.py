"""How a part is written: in bars, in note values that exist, with ties, triplets and beams. What ABC and sheet share.

Written lengths are counted in 192nds of a whole note, so that a sixty-fourth (3) is a whole number. A note of the score
whose ticks are no multiple of three belongs to a triplet, where each written length sounds for two thirds of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from backend.tasks.music.score import Melody, Note

WHOLE = 192
_BARS_A_LINE = 4
# Sixty-fourth to breve; each but the shortest can have a dot.
_PLAIN = tuple(3 * 2**power for power in range(8))
_LENGTHS = tuple(sorted({*_PLAIN, *(length * 3 // 2 for length in _PLAIN if length > 3)}, reverse=True))


@dataclass(frozen=True)
class Element:
    """A note, a chord or (without pitches) a rest. `tied` pitches go on in the next element of the part."""

    start: int
    ticks: int
    length: int
    pitches: tuple[int, ...]
    tied: bool

    @property
    def dotted(self) -> bool:
        """Whether the written length has a dot."""
        return self.length not in _PLAIN


@dataclass(frozen=True)
class Group:
    """Elements under one beam; `triplet` means that they sound for two thirds of what is written."""

    elements: tuple[Element, ...]
    triplet: bool


@dataclass(frozen=True)
class Bar:
    """What stands between two bar lines, in ticks from `start` to `end`."""

    start: int
    end: int
    groups: tuple[Group, ...]


def bars(melody: Melody, notes: Iterable[Note]) -> list[Bar]:
    """The bars of a part that lies under this melody's bar lines. Overlapping notes become tied chords."""
    slices = _slices(melody, tuple(notes))
    written = []
    first = 0
    for start, end in melody.measures:
        after = bisect_left(slices, end, lo=first, key=lambda piece: piece[0])
        written.append(Bar(start, end, tuple(_groups(melody, start, slices[first:after]))))
        first = after
    return written


def section_ends(melody: Melody) -> set[int]:
    """Ticks at which a section ends and another follows; a pickup belongs to what it leads to."""
    firsts = [index for index in melody.sections if 0 < index < melody.bars]
    return {min(melody.bar_starts[index - 1] + melody.bar_ticks, melody.bar_starts[index]) for index in firsts}


def line_ends(melody: Melody) -> set[int]:
    """Ticks at which a line of music ends: every four bars, and with each section."""
    sections = section_ends(melody)
    ends, count = set(), 0
    for start, following in zip(melody.bar_starts, (*melody.bar_starts, melody.end)[1:], strict=True):
        end = min(start + melody.bar_ticks, following)
        count += 1
        if count == _BARS_A_LINE or end in sections:
            ends.add(end)
            count = 0
    return ends


def beam_ticks(melody: Melody) -> int:
    """The part of a bar whose short notes share a beam."""
    top, bottom = melody.meter
    if bottom == 8 and top % 3 == 0:
        return 36
    return 48 if melody.meter == (4, 4) else 96 // bottom


_Slice = tuple[int, int, tuple[int, ...], bool]


def _slices(melody: Melody, notes: tuple[Note, ...]) -> list[_Slice]:
    """(start, end, pitches, whether they go on) for each stretch in which the same notes sound, cut at bar lines."""
    edges = {edge for measure in melody.measures for edge in measure}
    edges |= {edge for note in notes for edge in (note.start, note.start + note.ticks)}
    if _compound(melody):
        edges |= {beat for note in notes for beat in _beats_inside(melody, note)}
    places = sorted(edge for edge in edges if 0 <= edge <= melody.end)
    coming = deque(sorted(notes, key=lambda note: note.start))
    pieces: list[_Slice] = []
    active: list[Note] = []
    for start, end in zip(places, places[1:], strict=False):
        active = [note for note in active if note.start + note.ticks > start]
        while coming and coming[0].start <= start:
            active.append(coming.popleft())
        pitches = tuple(sorted({note.pitch for note in active}))
        pieces.append((start, end, pitches, bool(active) and all(note.start + note.ticks > end for note in active)))
    return pieces


def _compound(melody: Melody) -> bool:
    return beam_ticks(melody) == 36


def _beats_inside(melody: Melody, note: Note) -> list[int]:
    """Beats of a compound metre at which a note is cut, so that the beats can be seen; none if it is whole beats."""
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
    """The note values of a slice, tied together, the longest first; `scale` is what a tick is written as."""
    start, end, pitches, goes_on = piece
    left = (end - start) * scale
    elements: list[Element] = []
    while left > 0:
        length = next((length for length in _LENGTHS if length <= left and length % scale == 0), left)
        left -= length
        elements.append(Element(start, length // scale, length, pitches, bool(pitches) and (left > 0 or goes_on)))
        start += length // scale
    return elements
