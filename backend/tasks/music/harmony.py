"""Rule-based harmonisation: the cheapest chord progression from the triads of the mode, one chord per part of a bar.

It uses the Viterbi algorithm. The cost of a chord depends on the melody notes that are foreign to it, the cost of a
transition on the interval between the roots. All costs are set by hand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from backend.tasks.music.score import Chord, Melody, Note
from backend.tasks.music.spelling import pitch_class

_QUALITIES = {"maj": (0, 4, 7), "min": (0, 3, 7), "dim": (0, 3, 6)}


@dataclass(frozen=True)
class _Triad:
    """A triad of a mode: its root in semitones above the tonic, and its base cost, low for common chords."""

    root: int
    quality: str
    cost: float


# Root above the tonic, quality, cost.
_MODE_TRIADS: dict[str, tuple[_Triad, ...]] = {
    mode: tuple(_Triad(*triad) for triad in triads)
    for mode, triads in {
        "major": (
            (0, "maj", 0.0), (7, "maj", 0.1), (5, "maj", 0.15), (2, "min", 0.6), (9, "min", 0.5), (4, "min", 1.0),
        ),
        "mixolydian": (
            (0, "maj", 0.0), (10, "maj", 0.1), (5, "maj", 0.3), (7, "min", 0.7), (2, "min", 0.8), (7, "maj", 0.9),
        ),
        "dorian": ((0, "min", 0.0), (10, "maj", 0.1), (3, "maj", 0.5), (5, "maj", 0.5), (7, "min", 0.5)),
        "minor": (
            (0, "min", 0.0), (10, "maj", 0.2), (5, "min", 0.3), (7, "maj", 0.35), (3, "maj", 0.4), (8, "maj", 0.4),
            (7, "min", 0.6),
        ),
    }.items()
}  # fmt: skip
# The cost of a transition by the upward interval of the roots. Down a fifth (5) and up a fifth (7) are common.
_TRANSITION_COSTS = {0: 0.0, 5: 0.5, 7: 0.5, 2: 0.7, 10: 0.7, 9: 0.8, 3: 0.9, 4: 1.0, 8: 0.9}
_RARE_TRANSITION_COST = 1.6
_OFF_BAR_COST = 0.7  # added for a transition that is not at a barline
_NOTE_COSTS = {"foreign": 3.2, "root": -0.25}
_NO_CADENCE_COST = 6.0


def harmonise(melody: Melody) -> tuple[Chord, ...]:
    """Return the chords from the first full bar to the end, equal neighbours joined; empty for a pickup alone."""
    spans = _spans(melody)
    if not spans:
        return ()
    tonic = pitch_class(melody.tonic)
    triads = _MODE_TRIADS[melody.mode]
    costs = [_span_costs(_notes_between(melody, start, end), tonic, triads, start, end) for start, end in spans]
    bars = set(melody.bar_starts)
    sections = {melody.bar_starts[index] for index in melody.sections if index < melody.bars}
    for number, (start, _) in enumerate(spans):
        if start in sections:
            span_costs = costs[number]
            costs[number] = [
                cost + (0.0 if triad.root == 0 else 0.6) for cost, triad in zip(span_costs, triads, strict=True)
            ]
    costs[-1] = [
        cost + (0.0 if triad.root == 0 else _NO_CADENCE_COST) for cost, triad in zip(costs[-1], triads, strict=True)
    ]
    path = _viterbi(triads, costs, [start in bars for start, _ in spans])
    chords: list[Chord] = []
    for (start, end), triad in zip(spans, path, strict=True):
        root = (tonic + triad.root) % 12
        last = chords[-1] if chords else None
        if last and (last.root, last.quality) == (root, triad.quality) and last.start + last.ticks == start:
            chords[-1] = Chord(last.start, end - last.start, root, triad.quality)
        else:
            chords.append(Chord(start, end - start, root, triad.quality))
    return tuple(chords)


def chord_pitches(chord: Chord) -> tuple[int, int, int]:
    """Return the pitch classes of root, third and fifth."""
    root, third, fifth = ((chord.root + step) % 12 for step in _QUALITIES[chord.quality])
    return root, third, fifth


def _spans(melody: Melody) -> list[tuple[int, int]]:
    """Return the spans with one chord each: half bars in even meters, beats in 9/8, bars in 3/4 and 2/4."""
    ticks = melody.bar_ticks
    if melody.meter in ((2, 4), (3, 4), (3, 8)):
        step = ticks
    elif melody.meter[1] == 8 and melody.meter[0] % 6 == 3:
        step = ticks // 3
    else:
        step = ticks // 2
    spans = []
    for start, end in melody.measures:
        if melody.bar_starts and start >= melody.bar_starts[0]:
            spans += [(tick, min(tick + step, end)) for tick in range(start, end, step)]
    return spans


def _notes_between(melody: Melody, start: int, end: int) -> Sequence[Note]:
    """Return the notes that sound between two ticks. The melody is monophonic."""
    first = bisect_right(melody.notes, start, key=lambda note: note.start) - 1
    return melody.notes[max(first, 0) : bisect_left(melody.notes, end, key=lambda note: note.start)]


def _span_costs(notes: Sequence[Note], tonic: int, triads: tuple[_Triad, ...], start: int, end: int) -> list[float]:
    """Return the cost of each triad for the notes of a span. Longer notes and the first one have a higher weight."""
    costs = [triad.cost for triad in triads]
    length = end - start
    for note in notes:
        sounding = min(note.start + note.ticks, end) - max(note.start, start)
        if sounding <= 0:
            continue
        weight = sounding / length * (1.5 if note.start <= start else 1.0)
        degree = (note.pitch - tonic) % 12
        for index, triad in enumerate(triads):
            step = (degree - triad.root) % 12
            if step not in _QUALITIES[triad.quality]:
                costs[index] += weight * _NOTE_COSTS["foreign"]
            elif step == 0:
                costs[index] += weight * _NOTE_COSTS["root"]
    return costs


def _viterbi(triads: tuple[_Triad, ...], costs: list[list[float]], at_bar: list[bool]) -> list[_Triad]:
    best = costs[0]
    back: list[list[int]] = []
    for number in range(1, len(costs)):
        extra = 0.0 if at_bar[number] else _OFF_BAR_COST
        origins, totals = [], []
        for index, triad in enumerate(triads):
            candidates = [best[other] + _transition_cost(triads[other], triad, extra) for other in range(len(triads))]
            origin = min(range(len(candidates)), key=candidates.__getitem__)
            origins.append(origin)
            totals.append(candidates[origin] + costs[number][index])
        best = totals
        back.append(origins)
    index = min(range(len(best)), key=best.__getitem__)
    path = [index]
    for origins in reversed(back):
        path.append(origins[path[-1]])
    return [triads[index] for index in reversed(path)]


def _transition_cost(old: _Triad, new: _Triad, extra: float) -> float:
    if old == new:
        return 0.0
    return _TRANSITION_COSTS.get((new.root - old.root) % 12, _RARE_TRANSITION_COST) + extra
