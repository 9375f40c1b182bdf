"""From a request's options to all that a tune is made from: what callers leave open is filled in by stated rules.

The rules are deterministic in the seed, and whatever `check` lets pass can be completed for every seed:
form: any that fits, drawn. Metre: the form's usual one that fits. Mode: any that the key can be written in, drawn,
major six times in ten. Key: one of those that tunes of the mode are mostly written in, drawn. Instrument: the form's.
Backing: full. Bars and tempo: see `length`. Metre, key and mode of an opening phrase: see `continuing`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.common.errors import Validation
from backend.common.seeds import offset_seed
from backend.tasks.music.choices import default_instrument
from backend.tasks.music.continuation import Continued, check_fit, continued
from backend.tasks.music.length import Meter, length_of, may_begin_early, parsed, written
from backend.tasks.music.plan import FORMS, MODES, Plan
from backend.tasks.music.spelling import key_of

ANY = "any"
KEYS_OF_MODE = {
    "major": ("D", "G", "A", "C", "F", "Bb"),
    "minor": ("E", "A", "B", "D", "G"),
    "dorian": ("E", "A", "D", "B"),
    "mixolydian": ("D", "A", "G", "E"),
}
_MODE_WEIGHTS = {"major": 6, "minor": 2, "dorian": 1, "mixolydian": 1}
T = TypeVar("T")


@dataclass(frozen=True)
class Chosen:
    """Everything decided. `seconds` is None unless the caller named it; the audio then lasts exactly that long.

    `follows` says that the tempo was chosen to fill the seconds, so that it gives way to a pickup.
    """

    plan: Plan
    tempo_bpm: float
    follows: bool
    seconds: float | None
    instrument: str
    backing: str
    left_out: tuple[str, ...] = ()


def check(options: Mapping[str, Any]) -> None:
    """Refuses combinations that no tune can have. Raises Validation, which names the possible ones."""
    phrase = continued(options)
    options = {**options, **(phrase.fixed if phrase else {})}
    _modes(options)
    _styles(options, phrase)


def complete(options: Mapping[str, Any], seed: int) -> Chosen:
    """Fills in what the options leave open. Raises Validation as `check` does."""
    phrase = continued(options)
    options = {**options, **(phrase.fixed if phrase else {})}
    mode = _drawn(seed, "mode", [mode for mode in _modes(options) for _ in range(_MODE_WEIGHTS[mode])])
    key = options["key"] if options["key"] != ANY else _drawn(seed, "key", KEYS_OF_MODE[mode])
    styles = _styles(options, phrase)
    form = _drawn(seed, "form", sorted({form for form, _ in styles}))
    meter = next(meter for name, meter in styles if name == form)
    plan, tempo_bpm = _planned(options, phrase, (form, meter), mode, key)
    return Chosen(
        plan=plan,
        tempo_bpm=tempo_bpm,
        follows=options["seconds"] is not None and options["tempo_bpm"] is None,
        seconds=options["seconds"],
        instrument=_instrument(options, form),
        backing="full" if options["backing"] == ANY else options["backing"],
        left_out=phrase.left_out if phrase else (),
    )


def _instrument(options: Mapping[str, Any], form: str) -> str:
    named: str = options["instrument"]
    return default_instrument(form) if named == ANY else named


def seeds_of(seed: int, variations: int) -> list[int]:
    """The seed of each variation: the first has the job's own, so a variation can be made again alone."""
    return [offset_seed(seed, number) for number in range(variations)]


def _planned(
    options: Mapping[str, Any], phrase: Continued | None, style: tuple[str, Meter], mode: str, key: str
) -> tuple[Plan, float]:
    """The plan and the tempo. Raises Validation where length or opening do not fit the style."""
    form, meter = style
    opening = phrase.opening if phrase else None
    pickup_ticks = opening.pickup_ticks if opening else 0
    bars, tempo_bpm = length_of(options, form, meter, pickup_ticks)
    plan = Plan(
        form=form,
        meter=meter,
        mode=mode,
        tonic=key,
        bars=bars,
        pickup=may_begin_early(options, meter, bars),
        temperature=options["temperature"],
        top_p=options["top_p"],
        opening=opening,
    )
    check_fit(plan, _instrument(options, form))
    return plan, tempo_bpm


def _styles(options: Mapping[str, Any], phrase: Continued | None) -> list[tuple[str, Meter]]:
    """The forms and metres that the options leave, of each form the usual metre first."""
    forms = [options["form"]] if options["form"] != ANY else list(FORMS)
    meter = parsed(options["meter"])
    fitting = [(form, each) for form in forms for each in FORMS[form] if meter in (None, each)]
    if not fitting:
        raise _no_such_style(options)
    refusal: Validation | None = None
    possible = []
    key, mode = ("C" if options["key"] == ANY else options["key"]), _modes(options)[0]
    for style in fitting:
        try:
            _planned(options, phrase, style, mode, key)
            possible.append(style)
        except Validation as error:
            refusal = refusal or error
    if refusal and not possible:
        raise refusal
    return possible


def _no_such_style(options: Mapping[str, Any]) -> Validation:
    form, meter = options["form"], options["meter"]
    others = [other for other, meters in FORMS.items() if parsed(meter) in meters]
    remedies = [f"In {meter} there are: {', '.join(others)}."] if others else []
    if form == ANY:
        metres = sorted({written(each) for meters in FORMS.values() for each in meters})
        remedies.append(f"Metres: {', '.join(metres)}.")
    else:
        remedies.insert(0, f"Metres of this form: {', '.join(written(each) for each in FORMS[form])}.")
    return Validation(
        f"There are no tunes{'' if form == ANY else f' of the form {form}'} in {meter}.",
        " ".join(remedies),
        fields=["options.form", "options.meter"],
    )


def _modes(options: Mapping[str, Any]) -> list[str]:
    """The modes in which the key can be written with at most seven sharps or flats."""
    key, mode = options["key"], options["mode"]
    if key == ANY:
        return list(MODES) if mode == ANY else [mode]
    possible = [each for each in MODES if key_of(key, each).tonic == key]
    if mode == ANY:
        return possible
    if mode not in possible:
        raise Validation(
            f"{key} {mode} has more than seven sharps or flats.",
            f"The same key is written {key_of(key, mode).tonic} {mode}.",
            fields=["options.key", "options.mode"],
        )
    return [mode]


def _drawn(seed: int, what: str, choices: Sequence[T]) -> T:
    """One of the choices, the same for the same seed on every machine and Python."""
    digest = hashlib.sha256(f"{seed}/{what}".encode()).digest()
    return choices[int.from_bytes(digest[:8], "big") % len(choices)]
