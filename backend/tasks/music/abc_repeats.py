"""Plays out the repeats and endings of ABC: the bars as heard."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backend.tasks.music.abc_music import Bar

_MOST_TIMES = 9  # that a part is played


def played(bars: Sequence[Bar]) -> list[Bar]:
    """The bars in the order in which they are heard; a repeat goes back to where the last one ended or began.

    >>> bars = [Bar(1), Bar(1, ending="1", repeat_end=True), Bar(1, ending="2")]
    >>> [bars.index(bar) for bar in played(bars)]
    [0, 1, 0, 2]
    """
    heard: list[Bar] = []
    first, time, at = 0, 1, 0  # the bar that a repeat goes back to, and the how manieth time it is played
    in_ending = False
    while at < len(bars):
        bar = bars[at]
        if bar.repeat_start and at != first:
            first, time, in_ending = at, 1, False
        if bar.ending and time not in times_of(bar.ending):
            at = _behind_ending(bars, at)
            continue
        heard.append(bar)
        in_ending |= bool(bar.ending)
        if bar.repeat_end and time < _times(bars, first, at):
            at, time, in_ending = first, time + 1, False
            continue
        at += 1
        if bar.repeat_end or (bar.section_end and in_ending):
            first, time, in_ending = at, 1, False
    return heard


def times_of(ending: str) -> set[int]:
    """Of "1", "1,3" or "1-3": the times at which an ending is played."""
    times: set[int] = set()
    for part in ending.split(","):
        numbers = [min(int(number), _MOST_TIMES) for number in re.findall(r"\d{1,9}", part)]
        times |= set(range(numbers[0], numbers[-1] + 1)) if numbers else set()
    return times


def _times(bars: Sequence[Bar], first: int, at: int) -> int:
    """How often a part is played: twice, or as its endings say."""
    endings = [times_of(bar.ending) for bar in bars[first : at + 1] if bar.ending]
    for bar in bars[at + 1 :]:  # the next ending, where one begins right behind
        if endings and bar.ending:
            endings.append(times_of(bar.ending))
        break
    return max([2, *(max(times) for times in endings if times)])


def _behind_ending(bars: Sequence[Bar], at: int) -> int:
    """The first bar after the ending that begins at `at`."""
    after = at + 1
    while after < len(bars) and not (bars[after].ending or bars[after - 1].section_end or bars[after - 1].repeat_end):
        after += 1
    return after
