"""Free text fills the controls: "a slow sad tune in D minor, 30 seconds" by the tables below, and nothing by guessing.

What a caller sets as an option wins over the words. Each word is accounted for: understood, or ignored with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from backend.music.choices import INSTRUMENTS, tempo_of
from backend.music.length import fitted, parsed, written
from backend.music.plan import FORMS, MODES
from backend.music.words import FILLERS, FORM_OF_PACE, NUMBERS, SYNONYMS

_NUMBER_PATTERN = r"(\d+(?:[.,]\d+)?|" + "|".join(sorted(NUMBERS, key=len, reverse=True)) + ")"


@dataclass(frozen=True)
class Understood:
    """What the words set, by option, and the words that set nothing: each `{words, reason}`."""

    options: dict[str, Any]
    ignored: list[dict[str, str]]

    def sentence(self) -> str:
        """Both lists in words, for people; empty if there were no words."""
        parts = []
        if self.options:
            told = [f"{name.replace('_bpm', '')} {_shown(value)}" for name, value in self.options.items()]
            parts.append(f"Understood: {', '.join(told)}.")
        if self.ignored:
            left = ["“{words}” ({reason})".format(**each) for each in self.ignored]
            parts.append(f"Ignored: {', '.join(left)}.")
        return " ".join(parts)


class _Reading:
    """The text, from which what is understood is struck out."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: dict[str, Any] = {}
        self.words: dict[str, str] = {}
        self.ignored: list[dict[str, str]] = []

    def take(self, pattern: str, name: str, value: Callable[[re.Match[str]], Any], flags: int = re.IGNORECASE) -> None:
        """Every match is struck out; the first one counts."""

        def strike(match: re.Match[str]) -> str:
            wanted = value(match)
            if self.found.setdefault(name, wanted) != wanted:
                reason = f"“{self.words[name]}” was taken before"
                self.ignored.append({"words": match[0].strip(), "reason": reason})
            self.words.setdefault(name, match[0].strip())
            return " ; "

        self.text = re.sub(pattern, strike, self.text, flags=flags)


def read(text: str, given: Mapping[str, Any]) -> Understood:
    """What the words ask for; `given` are the options that the caller set."""
    reading = _Reading(text.replace("♯", "#").replace("♭", "b"))
    _read_numbers(reading)
    _read_key(reading)
    _read_names(reading)
    found, ignored = reading.found, reading.ignored
    if pace := found.pop("pace", None):
        _apply_pace(pace, reading, given)
    for name in list(found):
        other = {"bars": "seconds", "seconds": "bars"}.get(name)
        if given.get(name) not in (None, "any", found[name]):
            reason = f"the option {name} is set"
        elif other and given.get(other) is not None:
            reason = f"the option {other} is set"
        else:
            continue
        ignored.append({"words": reading.words[name], "reason": reason})
        del found[name]
    for piece in re.split(r"[;,.!?:()\"“”]+", reading.text):
        if rest := [word for word in piece.split() if word.lower() not in FILLERS]:
            ignored.append({"words": " ".join(rest), "reason": "not among the words that are known"})
    return Understood(found, ignored)


def _read_numbers(reading: _Reading) -> None:
    def number(match: re.Match[str]) -> float | int:
        word = match[1].lower().replace(",", ".")
        value = float(NUMBERS[word] if word in NUMBERS else word)
        return int(value) if value.is_integer() else value

    def half(_: re.Match[str]) -> int:
        return 30

    def minutes(match: re.Match[str]) -> float:
        return number(match) * 60

    reading.take(r"\bhalf (?:a|of a) minute\b", "seconds", half)
    reading.take(rf"\b{_NUMBER_PATTERN}[\s-]*(?:minutes?|mins?)\b", "seconds", minutes)
    reading.take(rf"\b{_NUMBER_PATTERN}[\s-]*(?:seconds?|secs?|s)\b", "seconds", number)
    reading.take(rf"\b{_NUMBER_PATTERN}[\s-]*(?:bars?|measures?)\b", "bars", number)
    reading.take(r"\b(\d+(?:[.,]\d+)?)\s*(?:bpm|beats (?:per|a) minute)\b", "tempo_bpm", number)
    reading.take(r"\btempo(?: of)? (\d+(?:[.,]\d+)?)\b", "tempo_bpm", number)
    reading.take(r"\bseed (\d+)\b", "seed", number)
    reading.take(rf"\b{_NUMBER_PATTERN} (?:variations?|versions?|takes?|tunes)\b", "variations", number)
    meters = "|".join(sorted({written(meter) for each in FORMS.values() for meter in each}))
    reading.take(rf"(?<![\d/])({meters})(?![\d/])", "meter", lambda match: match[1])


def _read_key(reading: _Reading) -> None:
    """A letter is a key where a mode follows it; a small one also needs "in" or "of", for "a minor" can be words."""
    modes = {**{mode: mode for mode in MODES}, "maj": "major", "min": "minor", "m": "minor"}
    accidental = r"\s?(#|b|[\s-]?(?:sharp|flat)\b)?"

    def key(match: re.Match[str]) -> str:
        sign = (match[2] or "").strip(" -").lower()
        return match[1].upper() + {"sharp": "#", "flat": "b"}.get(sign, sign)

    def both(match: re.Match[str]) -> tuple[str, str]:
        return key(match), modes[match[3].lower()]

    named = rf"{accidental}[\s-]?((?i:{'|'.join(MODES)}|maj|min)|m)\b(?! key\b| mode\b| tune\b)"
    reading.take(rf"\b([A-G]){named}", "both", both, flags=0)
    reading.take(rf"\b(?:in|of) ([a-g]){named}", "both", both)
    if pair := reading.found.pop("both", None):
        words = reading.words.pop("both")
        for name, value in zip(("key", "mode"), pair, strict=True):
            reading.found[name], reading.words[name] = value, words
    reading.take(rf"\b(?:in|key of) ([A-G]){accidental}(?!\w)", "key", key, flags=0)


def _read_names(reading: _Reading) -> None:
    names: dict[str, dict[str, str]] = {
        "form": {form: form for form in reversed(FORMS)},
        "mode": {mode: mode for mode in MODES},
        "instrument": {name.replace("-", " "): name for name in INSTRUMENTS},
    }
    for option, synonyms in SYNONYMS.items():
        table = {**synonyms, **names.get(option, {})}
        words = "|".join(sorted(table, key=len, reverse=True)).replace(" ", r"[\s-]")
        ending = "s?" if option in ("form", "instrument") else ""
        reading.take(rf"\b({words}){ending}\b", option, partial(_named, table))


def _named(table: dict[str, str], match: re.Match[str]) -> str:
    return table[re.sub(r"[\s-]", " ", match[1].lower())]


def _apply_pace(pace: str, reading: _Reading, given: Mapping[str, Any]) -> None:
    """Slow is an air and fast a reel where no form is named; the tempo lies halfway to the end of the form's range."""

    def wanted(name: str) -> Any:
        return reading.found.get(name) or (None if given.get(name) in (None, "any") else given[name])

    words = reading.words["pace"]
    if "tempo_bpm" in reading.found:
        reading.ignored.append({"words": words, "reason": f"“{reading.words['tempo_bpm']}” was taken before"})
        return
    meter = parsed(wanted("meter"))
    fitting = [FORM_OF_PACE[pace], *FORMS]
    usual = next((each for each in fitting if meter in (None, *FORMS[each])), fitting[0])
    form = wanted("form") or usual
    if form == usual:
        reading.found["form"], reading.words["form"] = form, reading.words.get("form", words)
    meter = meter or FORMS[form][0]
    tempo = tempo_of(form, meter)
    target = round((tempo.usual + (tempo.slow if pace == "slow" else tempo.fast)) / 2)
    seconds = wanted("seconds")
    fit = fitted(seconds, meter, replace(tempo, usual=target)) if seconds and math.isfinite(seconds) else None
    reading.found["tempo_bpm"], reading.words["tempo_bpm"] = fit[1] if fit else target, words


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
