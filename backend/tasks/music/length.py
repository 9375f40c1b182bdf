"""How long a tune is: bars and tempo from what was asked, exact in whatever was asked.

Without a word on the length it has 32 bars; without a tempo, the form's usual one. With `seconds` and no tempo, the
tempo is the one nearest to the usual at which whole bars fill the time, preferring multiples of sixteen bars, then
of eight, four, two. With both, the most whole bars that fit: the last note rings out in the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backend.common.errors import Validation
from backend.tasks.music.choices import Tempo, tempo_of
from backend.tasks.music.plan import MAX_BARS
from backend.tasks.music.score import TICKS_PER_WHOLE, beat_ticks_of
from backend.tasks.music.tokens import PICKUPS

MAX_SECONDS, MAX_SECONDS_OF_ALL = 600, 1800
DEFAULT_BARS = 32
_UNEVEN = ((16, 0.0), (8, 0.03), (4, 0.15), (2, 0.3), (1, 0.5))  # what a number of bars costs that only this divides
_EPSILON = 1e-9
Meter = tuple[int, int]


def length_of(options: Mapping[str, Any], form: str, meter: Meter, pickup_ticks: int = 0) -> tuple[int, float]:
    """Bars and tempo for a form in a metre, behind a pickup that is known beforehand.

    Raises Validation where they are too long, or too short for a bar.
    """
    pickup = pickup_ticks / beat_ticks_of(meter)  # in beats
    tempo, asked_bpm, seconds = tempo_of(form, meter), options["tempo_bpm"], options["seconds"]
    most_s = min(MAX_SECONDS, MAX_SECONDS_OF_ALL / options["variations"])
    if seconds is None:
        bars, bpm = options["bars"] or DEFAULT_BARS, asked_bpm or tempo.usual
        bar_s = bar_beats(meter) * 60 / bpm
        if bars * bar_s > most_s + _EPSILON:
            most = int(most_s / bar_s + _EPSILON)
            raise _too_long(f"{bars} bars of {written(meter)} at {bpm:g} beats a minute", options, f"{most} bars")
        return bars, bpm
    if seconds > most_s:
        raise _too_long(f"{seconds:g} seconds", options, f"{most_s:g} seconds")
    if asked_bpm is None:
        if fit := fitted(seconds, meter, tempo, pickup):
            return fit
        fastest = bar_beats(meter) * 60 / tempo.fast
        short = seconds < fastest
        raise _no_fit(form, meter, seconds, fastest if short else MAX_BARS * bar_beats(meter) * 60 / tempo.slow, short)
    bar_s = bar_beats(meter) * 60 / asked_bpm
    bars = int((seconds - pickup * 60 / asked_bpm) / bar_s + _EPSILON)
    if not 1 <= bars <= MAX_BARS:
        raise _no_fit(form, meter, seconds, bar_s if bars < 1 else MAX_BARS * bar_s, bars < 1)
    return bars, asked_bpm


def _too_long(what: str, options: Mapping[str, Any], most: str) -> Validation:
    variations, limit = options["variations"], f"{MAX_SECONDS} seconds"
    if variations > 1:
        what += f" in {variations} variations"
        limit = f"{MAX_SECONDS_OF_ALL} seconds for all variations together"
    return Validation(
        f"{what}: that is longer than {limit}.",
        f"Ask for at most {most}.",
        fields=["options.seconds" if options["seconds"] else "options.bars"],
    )


def _no_fit(form: str, meter: Meter, seconds: float, limit_s: float, short: bool) -> Validation:
    held = f"no bar of the form {form} in {written(meter)}" if short else f"over {MAX_BARS} bars"
    bound = math.ceil(limit_s * 100) / 100 if short else math.floor(limit_s * 100) / 100
    return Validation(
        f"{seconds:g} seconds hold {held} at that tempo.",
        f"Ask for {'at least' if short else 'at most'} {bound:g} seconds, or another tempo_bpm.",
        fields=["options.seconds", "options.tempo_bpm"],
    )


def may_begin_early(options: Mapping[str, Any], meter: Meter, bars: int) -> bool:
    """Whether a pickup may come before the first bar: where both seconds and tempo stand, only if any would fit."""
    if options["seconds"] is None or options["tempo_bpm"] is None:
        return True
    longest = max(ticks for ticks in PICKUPS if ticks < TICKS_PER_WHOLE * meter[0] // meter[1])
    beats = bars * bar_beats(meter) + longest / beat_ticks_of(meter)
    return bool(beats * 60 / options["tempo_bpm"] <= options["seconds"] + _EPSILON)


def fitted(seconds: float, meter: Meter, tempo: Tempo, pickup: float = 0.0) -> tuple[int, float] | None:
    """Bars and tempo at which whole bars fill the time behind `pickup` beats; None if no tempo of the range does."""
    beats = bar_beats(meter)
    found: tuple[float, int, float] | None = None
    fewest = max(1, math.ceil((seconds * tempo.slow / 60 - pickup) / beats - _EPSILON))
    for bars in range(fewest, MAX_BARS + 1):
        bpm = (bars * beats + pickup) * 60 / seconds
        if bpm > tempo.fast + _EPSILON:
            break
        cost = abs(math.log(bpm / tempo.usual)) + next(cost for step, cost in _UNEVEN if bars % step == 0)
        if found is None or cost < found[0]:
            found = (cost, bars, bpm)
    return found[1:] if found else None


def written(meter: Meter) -> str:
    """`6/8`."""
    return f"{meter[0]}/{meter[1]}"


def parsed(text: str | None) -> Meter | None:
    """The metre of `6/8`; None for `any` and for none."""
    if text in (None, "any"):
        return None
    top, _, bottom = text.partition("/")
    return int(top), int(bottom)


def bar_beats(meter: Meter) -> int:
    """Beats that the tempo counts in a bar."""
    return TICKS_PER_WHOLE * meter[0] // meter[1] // beat_ticks_of(meter)
