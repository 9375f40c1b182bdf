"""Completion of a request's options to the settings of a tune: rules choose a value for every option that is open.

The choices only depend on the options and the seed. Options that pass `check_options` can be completed for every seed.
Form: a random one that fits. Meter: the form's first one that fits. Mode: a random one in which the key can be written,
major with probability 0.6. Key: a random one of the usual keys of the mode. Instrument: the form's default. Backing:
full. Bars and tempo: see `length`. Meter, key and mode of an opening phrase: see `continuation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.common.errors import Validation
from backend.common.seeds import offset_seed
from backend.tasks.music.choices import default_instrument
from backend.tasks.music.continuation import ParsedOpening, check_opening, parse_abc_option
from backend.tasks.music.length import Meter, allows_pickup, choose_length, format_meter, parse_meter_name
from backend.tasks.music.plan import FORMS, MODES, Plan
from backend.tasks.music.spelling import key_of
from backend.tasks.music.tune_options import ANY, TuneOptions

KEYS_OF_MODE = {
    "major": ("D", "G", "A", "C", "F", "Bb"),
    "minor": ("E", "A", "B", "D", "G"),
    "dorian": ("E", "A", "D", "B"),
    "mixolydian": ("D", "A", "G", "E"),
}
_MODE_WEIGHTS = {"major": 6, "minor": 2, "dorian": 1, "mixolydian": 1}
T = TypeVar("T")


@dataclass(frozen=True)
class TuneSettings:
    """The complete settings of a tune. `seconds` is optional: the exact duration of the audio.

    `tempo_follows_length`: the tempo was chosen to fill the seconds, so it is adjusted for a pickup.
    """

    plan: Plan
    tempo_bpm: float
    tempo_follows_length: bool
    seconds: float | None
    instrument: str
    backing: str
    omissions: tuple[str, ...] = ()


def check_options(request: Mapping[str, Any]) -> None:
    """Raise Validation for combinations of options that no tune can have; its remedy lists possible ones."""
    options = TuneOptions.from_json(request)
    opening = parse_abc_option(options)
    options = opening.options if opening else options
    _possible_modes(options)
    _possible_styles(options, opening)


def complete_options(request: Mapping[str, Any], seed: int) -> TuneSettings:
    """Return the complete settings for the options and the seed. Raises Validation as `check_options` does."""
    options = TuneOptions.from_json(request)
    opening = parse_abc_option(options)
    options = opening.options if opening else options
    mode = _pick(seed, "mode", [mode for mode in _possible_modes(options) for _ in range(_MODE_WEIGHTS[mode])])
    key = options.key if options.key != ANY else _pick(seed, "key", KEYS_OF_MODE[mode])
    styles = _possible_styles(options, opening)
    form = _pick(seed, "form", sorted({form for form, _ in styles}))
    meter = next(meter for name, meter in styles if name == form)
    plan, tempo_bpm = _make_plan(options, opening, (form, meter), mode, key)
    return TuneSettings(
        plan=plan,
        tempo_bpm=tempo_bpm,
        tempo_follows_length=options.seconds is not None and options.tempo_bpm is None,
        seconds=options.seconds,
        instrument=_choose_instrument(options, form),
        backing="full" if options.backing == ANY else options.backing,
        omissions=opening.omissions if opening else (),
    )


def _choose_instrument(options: TuneOptions, form: str) -> str:
    return default_instrument(form) if options.instrument == ANY else options.instrument


def variation_seeds(seed: int, variations: int) -> list[int]:
    """Return the seed of each variation. The first is the job's seed, so each variation can be reproduced alone."""
    return [offset_seed(seed, number) for number in range(variations)]


def _make_plan(
    options: TuneOptions, parsed: ParsedOpening | None, style: tuple[str, Meter], mode: str, key: str
) -> tuple[Plan, float]:
    """Return the plan and the tempo. Raises Validation if the length or the opening does not fit the style."""
    form, meter = style
    opening = parsed.opening if parsed else None
    pickup_ticks = opening.pickup_ticks if opening else 0
    bars, tempo_bpm = choose_length(options, form, meter, pickup_ticks)
    plan = Plan(
        form=form,
        meter=meter,
        mode=mode,
        tonic=key,
        bars=bars,
        pickup=allows_pickup(options, meter, bars),
        temperature=options.temperature,
        top_p=options.top_p,
        opening=opening,
    )
    check_opening(plan, _choose_instrument(options, form))
    return plan, tempo_bpm


def _possible_styles(options: TuneOptions, opening: ParsedOpening | None) -> list[tuple[str, Meter]]:
    """Return the (form, meter) pairs that fit the options, the usual meter of a form first. Raises Validation."""
    forms = [options.form] if options.form != ANY else list(FORMS)
    meter = parse_meter_name(options.meter)
    fitting = [(form, each) for form in forms for each in FORMS[form] if meter in (None, each)]
    if not fitting:
        raise _style_error(options)
    first_error: Validation | None = None
    possible = []
    key, mode = ("C" if options.key == ANY else options.key), _possible_modes(options)[0]
    for style in fitting:
        try:
            _make_plan(options, opening, style, mode, key)
            possible.append(style)
        except Validation as error:
            first_error = first_error or error
    if first_error and not possible:
        raise first_error
    return possible


def _style_error(options: TuneOptions) -> Validation:
    form, meter = options.form, options.meter
    others = [other for other, meters in FORMS.items() if parse_meter_name(meter) in meters]
    remedies = [f"Forms in {meter}: {', '.join(others)}."] if others else []
    if form == ANY:
        metres = sorted({format_meter(each) for meters in FORMS.values() for each in meters})
        remedies.append(f"Meters: {', '.join(metres)}.")
    else:
        remedies.insert(0, f"Meters of this form: {', '.join(format_meter(each) for each in FORMS[form])}.")
    return Validation(
        f"Tunes{'' if form == ANY else f' of the form {form}'} in {meter} are not supported.",
        " ".join(remedies),
        fields=["options.form", "options.meter"],
    )


def _possible_modes(options: TuneOptions) -> list[str]:
    """Return the modes in which the key has at most seven sharps or flats. Raises Validation if there are none."""
    key, mode = options.key, options.mode
    if key == ANY:
        return list(MODES) if mode == ANY else [mode]
    possible = [each for each in MODES if key_of(key, each).tonic == key]
    if mode == ANY:
        return possible
    if mode not in possible:
        raise Validation(
            f"{key} {mode} has more than seven sharps or flats.",
            f"Use its enharmonic equivalent, {key_of(key, mode).tonic} {mode}.",
            fields=["options.key", "options.mode"],
        )
    return [mode]


def _pick(seed: int, purpose: str, choices: Sequence[T]) -> T:
    """Return one of the choices; the same for the same seed and purpose on every platform and Python version."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return choices[int.from_bytes(digest[:8], "big") % len(choices)]
