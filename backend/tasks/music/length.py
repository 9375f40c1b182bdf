"""The length of a tune: the number of bars and the tempo. Requested values are met exactly.

Default: 32 bars at the form's usual tempo. With `seconds` and no tempo, the tempo is adjusted so that complete bars
fill the time, close to the usual tempo, preferably with a multiple of sixteen bars, then of eight, four, two. With
both, the tune has as many complete bars as fit, and the last note rings out in the remaining time.
"""

from __future__ import annotations

import math

from backend.common.errors import Validation
from backend.tasks.music.choices import Tempo, tempo_of
from backend.tasks.music.plan import MAX_BARS
from backend.tasks.music.score import TICKS_PER_WHOLE, beat_ticks_of
from backend.tasks.music.tokens import PICKUPS
from backend.tasks.music.tune_options import TuneOptions

MAX_SECONDS, MAX_TOTAL_SECONDS = 600, 1800
DEFAULT_BARS = 32
_BAR_COUNT_COSTS = (
    (16, 0.0),
    (8, 0.03),
    (4, 0.15),
    (2, 0.3),
    (1, 0.5),
)  # (divisor, cost): the first divisor of the number of bars counts
_EPSILON = 1e-9
Meter = tuple[int, int]


def choose_length(options: TuneOptions, form: str, meter: Meter, pickup_ticks: int = 0) -> tuple[int, float]:
    """Return the number of bars and the tempo for a form and meter, after a known pickup.

    Raises Validation if the tune would be too long, or shorter than a bar.
    """
    pickup = pickup_ticks / beat_ticks_of(meter)  # in beats
    tempo, asked_bpm, seconds = tempo_of(form, meter), options.tempo_bpm, options.seconds
    max_s = min(MAX_SECONDS, MAX_TOTAL_SECONDS / options.variations)
    if seconds is None:
        bars, bpm = options.bars or DEFAULT_BARS, asked_bpm or tempo.usual
        bar_s = bar_beats(meter) * 60 / bpm
        if bars * bar_s > max_s + _EPSILON:
            max_bars = int(max_s / bar_s + _EPSILON)
            subject = f"{bars} bars of {format_meter(meter)} at {bpm:g} beats per minute"
            raise _too_long(subject, options, f"{max_bars} bars")
        return bars, bpm
    if seconds > max_s:
        raise _too_long(f"{seconds:g} seconds", options, f"{max_s:g} seconds")
    if asked_bpm is None:
        if fit := fit_tempo(seconds, meter, tempo, pickup):
            return fit
        shortest_s = bar_beats(meter) * 60 / tempo.fast
        is_too_short = seconds < shortest_s
        raise _no_fit(
            form,
            meter,
            seconds,
            shortest_s if is_too_short else MAX_BARS * bar_beats(meter) * 60 / tempo.slow,
            is_too_short,
        )
    bar_s = bar_beats(meter) * 60 / asked_bpm
    bars = int((seconds - pickup * 60 / asked_bpm) / bar_s + _EPSILON)
    if not 1 <= bars <= MAX_BARS:
        raise _no_fit(form, meter, seconds, bar_s if bars < 1 else MAX_BARS * bar_s, bars < 1)
    return bars, asked_bpm


def _too_long(subject: str, options: TuneOptions, limit_text: str) -> Validation:
    variations, limit = options.variations, f"{MAX_SECONDS} seconds"
    if variations > 1:
        subject += f" in {variations} variations"
        limit = f"{MAX_TOTAL_SECONDS} seconds for all variations together"
    return Validation(
        f"{subject}: this is longer than {limit}.",
        f"Set at most {limit_text}.",
        fields=["options.seconds" if options.seconds else "options.bars"],
    )


def _no_fit(form: str, meter: Meter, seconds: float, limit_s: float, is_too_short: bool) -> Validation:
    problem = (
        f"too short for a bar of the form {form} in {format_meter(meter)}"
        if is_too_short
        else f"too long for {MAX_BARS} bars, the maximum,"
    )
    bound = math.ceil(limit_s * 100) / 100 if is_too_short else math.floor(limit_s * 100) / 100
    return Validation(
        f"{seconds:g} seconds are {problem} at this tempo.",
        f"Set {'at least' if is_too_short else 'at most'} {bound:g} seconds, or change tempo_bpm.",
        fields=["options.seconds", "options.tempo_bpm"],
    )


def allows_pickup(options: TuneOptions, meter: Meter, bars: int) -> bool:
    """Whether a pickup is allowed. It is not if seconds and tempo are both set and the longest pickup does not fit."""
    if options.seconds is None or options.tempo_bpm is None:
        return True
    longest = max(ticks for ticks in PICKUPS if ticks < TICKS_PER_WHOLE * meter[0] // meter[1])
    beats = bars * bar_beats(meter) + longest / beat_ticks_of(meter)
    return bool(beats * 60 / options.tempo_bpm <= options.seconds + _EPSILON)


def fit_tempo(seconds: float, meter: Meter, tempo: Tempo, pickup: float = 0.0) -> tuple[int, float] | None:
    """Return bars and tempo so that complete bars fill the time after `pickup` beats; None without such a tempo."""
    beats = bar_beats(meter)
    best: tuple[float, int, float] | None = None
    fewest = max(1, math.ceil((seconds * tempo.slow / 60 - pickup) / beats - _EPSILON))
    for bars in range(fewest, MAX_BARS + 1):
        bpm = (bars * beats + pickup) * 60 / seconds
        if bpm > tempo.fast + _EPSILON:
            break
        cost = abs(math.log(bpm / tempo.usual)) + next(cost for step, cost in _BAR_COUNT_COSTS if bars % step == 0)
        if best is None or cost < best[0]:
            best = (cost, bars, bpm)
    return best[1:] if best else None


def format_meter(meter: Meter) -> str:
    """Return the meter as text, such as `6/8`."""
    return f"{meter[0]}/{meter[1]}"


def parse_meter_name(text: str | None) -> Meter | None:
    """Return the meter of a text such as `6/8`; None for `any` and for None."""
    if text in (None, "any"):
        return None
    top, _, bottom = text.partition("/")
    return int(top), int(bottom)


def bar_beats(meter: Meter) -> int:
    """Return the number of beats in a bar, as the tempo counts them."""
    return TICKS_PER_WHOLE * meter[0] // meter[1] // beat_ticks_of(meter)
