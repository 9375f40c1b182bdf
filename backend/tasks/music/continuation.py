"""What an opening phrase fixes: its metre and key are those of the tune.

A phrase that names no metre is read in the one asked for, or else the form's usual one (4/4 without a form); one that
names no key, in the key and mode asked for, or else in C major, as ABC has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.common.errors import Validation
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.instrument_range import reaching
from backend.tasks.music.length import parsed, written
from backend.tasks.music.opening import opening_tokens, read_opening
from backend.tasks.music.plan import FORMS, Opening, Plan


@dataclass(frozen=True)
class Continued:
    """The phrase, the options that it fixes, and what of it was left out, in sentences."""

    opening: Opening
    fixed: dict[str, str]
    left_out: tuple[str, ...]


def continued(options: Mapping[str, Any]) -> Continued | None:
    """Reads the option `abc`, if there is one. Raises Validation where it cannot be read or contradicts the others."""
    if options["abc"] is None:
        return None
    meter = parsed(options["meter"]) or (FORMS[options["form"]][0] if options["form"] in FORMS else (4, 4))
    key = "C" if options["key"] == "any" else options["key"]
    mode = "major" if options["mode"] == "any" else options["mode"]
    try:
        phrase = read_opening(options["abc"], meter, f"{key} {mode}")
    except AbcError as error:
        place = f"line {error.line}, column {error.column}"
        raise _refused(f"{place}: {error.reason}", f"{error.remedy[0].upper()}{error.remedy[1:]}.") from error
    fixed = {"meter": written(phrase.meter or meter), "key": phrase.tonic or key, "mode": phrase.mode or mode}
    for name, value in fixed.items():
        if options[name] not in ("any", value):
            raise _refused(
                f"the phrase has the {name} {value}, and the option {name} is {options[name]}",
                f"Leave the option {name} out, or change the phrase.",
            )
    return Continued(phrase.opening, fixed, phrase.left_out)


def check_fit(plan: Plan, instrument: str) -> None:
    """Refuses an opening that the tune cannot begin with, or the instrument not play. Raises Validation."""
    if plan.opening is None:
        return
    possible = reaching(note.pitch for note in plan.opening.notes)
    if instrument not in possible:
        others = f"Instruments that do: {', '.join(possible)}." if possible else "Keep the phrase within two octaves."
        raise _refused(f"the instrument {instrument} reaches the phrase in no octave", others)
    try:
        opening_tokens(plan)
    except ValueError as error:
        raise _refused(str(error), "Shorten or simplify the phrase, or ask for more bars.") from error


def _refused(why: str, remedy: str) -> Validation:
    return Validation(f"options.abc: {why}.", remedy, fields=["options.abc"])
