"""The option `abc`: an opening phrase, which determines the tune's meter, key and mode.

The default meter of a phrase is the requested one, or else the form's first one (4/4 without a form). Its default key
is the requested key and mode, or else C major, as in ABC.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.common.errors import Validation
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.instrument_range import instruments_for
from backend.tasks.music.length import format_meter, parse_meter_name
from backend.tasks.music.opening import opening_tokens, read_opening
from backend.tasks.music.plan import FORMS, Opening, Plan
from backend.tasks.music.tune_options import ANY, TuneOptions


@dataclass(frozen=True)
class ParsedOpening:
    """The opening, the options with its meter, key and mode, and messages about parts that were skipped."""

    opening: Opening
    options: TuneOptions
    omissions: tuple[str, ...]


def parse_abc_option(options: TuneOptions) -> ParsedOpening | None:
    """Parse the option `abc`; None without one. Raises Validation if it is invalid or contradicts other options."""
    if options.abc is None:
        return None
    meter = parse_meter_name(options.meter) or (FORMS[options.form][0] if options.form in FORMS else (4, 4))
    key = "C" if options.key == ANY else options.key
    mode = "major" if options.mode == ANY else options.mode
    try:
        phrase = read_opening(options.abc, meter, f"{key} {mode}")
    except AbcError as error:
        place = f"line {error.line}, column {error.column}"
        raise _abc_error(f"{place}: {error.reason}", f"{error.remedy[0].upper()}{error.remedy[1:]}.") from error
    fixed = replace(
        options,
        meter=format_meter(phrase.meter or meter),
        key=phrase.tonic or key,
        mode=phrase.mode or mode,
    )
    for name, requested, value in (
        ("meter", options.meter, fixed.meter),
        ("key", options.key, fixed.key),
        ("mode", options.mode, fixed.mode),
    ):
        if requested not in (ANY, value):
            raise _abc_error(
                f"the phrase has the {name} {value}, but the option {name} is {requested}",
                f"Omit options.{name}, or change the phrase.",
            )
    return ParsedOpening(phrase.opening, fixed, phrase.omissions)


def check_opening(plan: Plan, instrument: str) -> None:
    """Raise Validation if the plan's opening does not fit the tune or the instrument's range."""
    if plan.opening is None:
        return
    suitable = instruments_for(note.pitch for note in plan.opening.notes)
    if instrument not in suitable:
        remedy = f"Choose one of {', '.join(suitable)}." if suitable else "Keep the phrase within two octaves."
        raise _abc_error(f"the phrase is outside the range of the instrument {instrument}", remedy)
    try:
        opening_tokens(plan)
    except ValueError as error:
        raise _abc_error(str(error), "Shorten or simplify the phrase, or set more bars.") from error


def _abc_error(why: str, remedy: str) -> Validation:
    return Validation(f"options.abc: {why}.", remedy, fields=["options.abc"])
