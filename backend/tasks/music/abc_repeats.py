"""Expansion of ABC repeats and volta endings to the bars in playing order."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backend.tasks.music.abc_music import Bar

_MAX_REPEATS = 9  # passes through a repeated part


def expand_repeats(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars in playing order. A repeat goes back to its start mark, or to the end of the previous repeat.

    >>> bars = [Bar(1), Bar(1, ending="1", repeat_end=True), Bar(1, ending="2")]
    >>> [bars.index(bar) for bar in played(bars)]
    [0, 1, 0, 2]
    """
    played: list[Bar] = []
    first, time, index = 0, 1, 0  # the first bar of the part, the number of the pass
    in_ending = False
    while index < len(bars):
        bar = bars[index]
        if bar.repeat_start and index != first:
            first, time, in_ending = index, 1, False
        if bar.ending and time not in parse_ending(bar.ending):
            index = _skip_ending(bars, index)
            continue
        played.append(bar)
        in_ending |= bool(bar.ending)
        if bar.repeat_end and time < _play_count(bars, first, index):
            index, time, in_ending = first, time + 1, False
            continue
        index += 1
        if bar.repeat_end or (bar.section_end and in_ending):
            first, time, in_ending = index, 1, False
    return played


def parse_ending(ending: str) -> set[int]:
    """Return the passes in which an ending such as "1", "1,3" or "1-3" is played."""
    times: set[int] = set()
    for part in ending.split(","):
        numbers = [min(int(number), _MAX_REPEATS) for number in re.findall(r"\d{1,9}", part)]
        times |= set(range(numbers[0], numbers[-1] + 1)) if numbers else set()
    return times


def _play_count(bars: Sequence[Bar], first: int, index: int) -> int:
    """Return the number of passes through a part: two, or the highest number of its endings."""
    endings = [parse_ending(bar.ending) for bar in bars[first : index + 1] if bar.ending]
    for bar in bars[index + 1 :]:  # an ending that follows directly
        if endings and bar.ending:
            endings.append(parse_ending(bar.ending))
        break
    return max([2, *(max(times) for times in endings if times)])


def _skip_ending(bars: Sequence[Bar], index: int) -> int:
    """Return the index of the first bar after the ending that starts at `index`."""
    after = index + 1
    while after < len(bars) and not (bars[after].ending or bars[after - 1].section_end or bars[after - 1].repeat_end):
        after += 1
    return after
