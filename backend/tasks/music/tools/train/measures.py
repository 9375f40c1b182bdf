"""Metrics of tunes, real or generated, both given as grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from backend.tasks.music import tokens
from backend.tasks.music.grid import TuneGrid
from backend.tasks.music.originality import pitch_tokens
from backend.tasks.music.tools.train.dataset import SCALES


def duration_distribution(rows: Iterable[TuneGrid]) -> dict[int, float]:
    """Return the fraction of each duration among the notes, ties joined."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update(_note_durations(row))
    total = counts.total()
    return {ticks: count / total for ticks, count in sorted(counts.items())}


def _note_durations(row: TuneGrid) -> list[int]:
    result: list[int] = []
    for event in row.events:
        if event.token == tokens.TIE and result:
            result[-1] += event.ticks
        elif event.token != tokens.REST:
            result.append(event.ticks)
    return result


def distance(left: dict[int, float], right: dict[int, float]) -> float:
    """Return the total variation distance of two distributions."""
    return sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in left.keys() | right.keys()) / 2


def scale_share(rows: Iterable[TuneGrid], mode: str) -> float:
    """Return the fraction of note time on notes of the mode's scale; the raised seventh of minor is outside."""
    inside = total = 0
    for row in rows:
        pitch = 0
        for event in row.events:
            if event.token == tokens.REST:
                continue
            relative = tokens.token_pitch(event.token)
            pitch = pitch if relative is None else relative
            total += event.ticks
            inside += event.ticks * (pitch % 12 in SCALES[mode])
    return inside / max(1, total)


def ends_on_tonic(row: TuneGrid) -> bool:
    """Whether the last note is the tonic in any octave."""
    return tokens.PITCHES[pitch_tokens(row)[-1] - tokens.PITCH] % 12 == 0


def repeated_bars(row: TuneGrid) -> float:
    """Return the fraction of bars that equal an earlier one."""
    bars: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in row.events:
        bars.setdefault((event.section, event.bars_left), []).append((event.token, event.ticks))
    distinct = Counter(tuple(bar) for bar in bars.values())
    return 1 - len(distinct) / max(1, len(bars))


def texture(rows: Sequence[TuneGrid]) -> dict[str, float]:
    """Return averages over all tunes."""
    steps, ranges, notes, bars = 0, 0, 0, 0
    moves = 0
    for row in rows:
        pitches = pitch_tokens(row)
        steps += sum(abs(after - before) for before, after in zip(pitches, pitches[1:], strict=False))
        moves += len(pitches) - 1
        ranges += max(pitches) - min(pitches)
        notes += len(pitches)
        bars += row.bars_done
    return {
        "ends on tonic": sum(ends_on_tonic(row) for row in rows) / len(rows),
        "mean interval": steps / moves,
        "range": ranges / len(rows),
        "repeated bars": sum(repeated_bars(row) for row in rows) / len(rows),
        "notes per bar": notes / bars,
    }


class Copies:
    """The intervals of the training tunes, to find runs copied from them."""

    def __init__(self, training: Iterable[TuneGrid]) -> None:
        # Each interval is a character, so that a run can be found as a substring.
        self._text = "\n".join(_text(row) for row in training)
        self._grams: dict[int, set[str]] = {}

    def share(self, rows: Iterable[TuneGrid], length: int) -> float:
        """Return the fraction of runs of `length` intervals that also occur in a training tune."""
        if length not in self._grams:
            lines = self._text.split("\n")
            self._grams[length] = {line[at : at + length] for line in lines for at in range(len(line) - length + 1)}
        copied = total = 0
        for row in rows:
            text = _text(row)
            for at in range(len(text) - length + 1):
                total += 1
                copied += text[at : at + length] in self._grams[length]
        return copied / max(1, total)

    def longest(self, row: TuneGrid) -> int:
        """Return the length of the longest run that also occurs in a training tune, in intervals."""
        text, longest = _text(row), 0
        for at in range(len(text)):
            while at + longest < len(text) and text[at : at + longest + 1] in self._text:
                longest += 1
        return longest


def _text(row: TuneGrid) -> str:
    pitches = pitch_tokens(row)
    return "".join(chr(200 + after - before) for before, after in zip(pitches, pitches[1:], strict=False))
