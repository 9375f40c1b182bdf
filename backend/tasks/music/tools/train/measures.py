"""What is measured on tunes, real or generated: both are seen as the rows that the grid makes of their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from backend.tasks.music import tokens
from backend.tasks.music.grid import TuneGrid
from backend.tasks.music.originality import pitch_tokens
from backend.tasks.music.tools.train.dataset import SCALES


def durations(rows: Iterable[TuneGrid]) -> dict[int, float]:
    """Share of each duration among the sounding notes, ties joined."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update(_joined(row))
    total = counts.total()
    return {ticks: count / total for ticks, count in sorted(counts.items())}


def _joined(row: TuneGrid) -> list[int]:
    found: list[int] = []
    for event in row.events:
        if event.token == tokens.TIE and found:
            found[-1] += event.ticks
        elif event.token != tokens.REST:
            found.append(event.ticks)
    return found


def distance(left: dict[int, float], right: dict[int, float]) -> float:
    """Total variation distance of two distributions."""
    return sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in left.keys() | right.keys()) / 2


def in_scale(rows: Iterable[TuneGrid], mode: str) -> float:
    """Share of the sounding time spent on notes of the mode's scale; the raised seventh of minor is outside."""
    inside = total = 0
    for row in rows:
        pitch = 0
        for event in row.events:
            if event.token == tokens.REST:
                continue
            own = tokens.token_pitch(event.token)
            pitch = pitch if own is None else own
            total += event.ticks
            inside += event.ticks * (pitch % 12 in SCALES[mode])
    return inside / max(1, total)


def ends_on_tonic(row: TuneGrid) -> bool:
    """Whether the last note is the tonic in any octave."""
    return tokens.PITCHES[pitch_tokens(row)[-1] - tokens.PITCH] % 12 == 0


def repeated_bars(row: TuneGrid) -> float:
    """Share of bars that are the same as an earlier one."""
    bars: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in row.events:
        bars.setdefault((event.section, event.bars_left), []).append((event.token, event.ticks))
    seen = Counter(tuple(bar) for bar in bars.values())
    return 1 - len(seen) / max(1, len(bars))


def texture(rows: Sequence[TuneGrid]) -> dict[str, float]:
    """Averages that describe tunes."""
    steps, ranges, notes, bars = 0, 0, 0, 0
    moves = 0
    for row in rows:
        own = pitch_tokens(row)
        steps += sum(abs(after - before) for before, after in zip(own, own[1:], strict=False))
        moves += len(own) - 1
        ranges += max(own) - min(own)
        notes += len(own)
        bars += row.bars_done
    return {
        "ends on tonic": sum(ends_on_tonic(row) for row in rows) / len(rows),
        "mean interval": steps / moves,
        "range": ranges / len(rows),
        "repeated bars": sum(repeated_bars(row) for row in rows) / len(rows),
        "notes per bar": notes / bars,
    }


class Copies:
    """The intervals of the training tunes, to find what was copied from them."""

    def __init__(self, training: Iterable[TuneGrid]) -> None:
        # Characters stand for intervals, so that a run is found as a substring.
        self._text = "\n".join(_text(row) for row in training)
        self._grams: dict[int, set[str]] = {}

    def share(self, rows: Iterable[TuneGrid], length: int) -> float:
        """Share of the runs of so many intervals that stand in a training tune too."""
        if length not in self._grams:
            lines = self._text.split("\n")
            self._grams[length] = {line[at : at + length] for line in lines for at in range(len(line) - length + 1)}
        found = total = 0
        for row in rows:
            text = _text(row)
            for at in range(len(text) - length + 1):
                total += 1
                found += text[at : at + length] in self._grams[length]
        return found / max(1, total)

    def longest(self, row: TuneGrid) -> int:
        """Intervals in the longest run that a training tune has too."""
        text, longest = _text(row), 0
        for at in range(len(text)):
            while at + longest < len(text) and text[at : at + longest + 1] in self._text:
                longest += 1
        return longest


def _text(row: TuneGrid) -> str:
    own = pitch_tokens(row)
    return "".join(chr(200 + after - before) for before, after in zip(own, own[1:], strict=False))
