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

from backend.tasks.music.amounts import DIGITS, LENGTHS, NUMBER, number, seconds
from backend.tasks.music.choices import INSTRUMENTS, tempo_of
from backend.tasks.music.length import fitted, parsed, written
from backend.tasks.music.plan import FORMS, MODES
from backend.tasks.music.prompt_words import CLAUSES, FILLERS, FORM_OF_PACE, NEGATIONS, SYNONYMS
from backend.tasks.music.spelling import key_of

UNKNOWN = "not among the English words that are known"
NEGATED = "what a tune shall not be is not understood: say what it shall be"


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

    def drop(self, pattern: str, reason: str) -> None:
        """Every match is struck out and sets nothing."""

        def strike(match: re.Match[str]) -> str:
            self.ignored.append({"words": match[0].strip(), "reason": reason})
            return " ; "

        self.text = re.sub(pattern, strike, self.text, flags=re.IGNORECASE)


def read(text: str, given: Mapping[str, Any]) -> Understood:
    """What the words ask for; `given` are the options that the caller set."""
    reading = _Reading(text.replace("♯", "#").replace("♭", "b").replace("’", "'"))
    _read_names(reading, "backing")  # "no bass" is one, so they come before other negations
    _drop_negated(reading)
    _read_numbers(reading)
    _read_key(reading)
    for option in ("form", "mode", "meter", "instrument", "pace"):
        _read_names(reading, option)
    _mean_major(reading, given)
    found, ignored = reading.found, reading.ignored
    if pace := found.pop("pace", None):
        _apply_pace(pace, reading, given)
    for name in list(found):
        other = {"bars": "seconds", "seconds": "bars"}.get(name)
        if given.get(name) not in (None, "any", found[name]):
            reason = f"the option {name} is set"
        elif name == "bars" and "seconds" in found:
            reason = f"“{reading.words['seconds']}” was taken before"
        elif other and given.get(other) is not None:
            reason = f"the option {other} is set"
        else:
            continue
        ignored.append({"words": reading.words[name], "reason": reason})
        del found[name]
    for piece in re.split(r"[;,.!?:()~=\"“”]+", reading.text):
        if rest := [word for word in piece.split() if word.lower() not in FILLERS]:
            ignored.append({"words": " ".join(rest), "reason": UNKNOWN})
    return Understood(found, ignored)


def _drop_negated(reading: _Reading) -> None:
    """A negation takes the words behind it along, up to the end of its clause."""
    negation = "|".join(NEGATIONS).replace(" ", r"\s")
    short = rf"(?:{'|'.join(CLAUSES)})\b"
    inner = rf"(?!(?:{short}|[;,.!?:()]))[^\s;,.!?:()]+"
    reading.drop(
        rf"(?<![\w'])(?:do\s|and\s|but\s)?(?:{negation})(?![\w'])(?:\s+(?:too|so|very)\s+{inner}|(?:\s+{short})*(?:\s+{inner})*)",
        NEGATED,
    )


def _read_numbers(reading: _Reading) -> None:
    def amount(match: re.Match[str]) -> float | int:
        return number(match[1])

    reading.take(rf"\bseconds\s*[:=]\s*({DIGITS})(?![\w/])", "seconds", amount)
    for length in LENGTHS:
        reading.take(rf"{length}(?:\s+long\b)?", "seconds", seconds)
    reading.take(rf"({NUMBER})[\s-]*(?:bars?|measures?)\b(?:\s+long\b)?", "bars", amount)
    reading.take(r"\bbars\s*[:=]?\s*(\d+)\b", "bars", amount)
    reading.take(rf"({NUMBER})[\s-]*(?:bpm|beats\s(?:per|an?)\sminute)\b", "tempo_bpm", amount)
    reading.take(
        rf"\b(?:tempo|bpm|quarter|crotchet)\s*(?:of|at|is|[:=])?\s*(?:about\s)?({DIGITS})(?![\w/])", "tempo_bpm", amount
    )
    reading.take(r"\bseed\s*(?:of|is|[:=#])?\s*(\d+)\b", "seed", amount)
    reading.take(
        rf"({NUMBER})[\s-]+(?:(?:different|other)\s)?(?:variations?|variants?|versions?|takes?|tunes)\b",
        "variations",
        amount,
    )
    reading.take(r"\bvariations\s*[:=]?\s*(\d+)\b", "variations", amount)
    meters = "|".join(sorted({written(meter) for each in FORMS.values() for meter in each}))
    reading.take(rf"(?<![\d/])({meters})(?![\d/])", "meter", lambda match: match[1])


_MODE_NAMES = {
    **{mode: mode for mode in MODES}, "maj": "major", "min": "minor", "m": "minor", "dor": "dorian",
    "mix": "mixolydian", "ionian": "major", "aeolian": "minor",
}  # fmt: skip
_SIGN = r"\s?(#|b(?![a-z])|[\s-]?(?:sharp|flat)\b)?"


def _read_key(reading: _Reading) -> None:
    """A letter is a key where a mode follows it; a small one also needs a sign or "in", for "a minor" can be words."""

    def key(match: re.Match[str]) -> str:
        sign = (match[2] or "").strip(" -").lower()
        return match[1].upper() + {"sharp": "#", "flat": "b"}.get(sign, sign)

    def both(match: re.Match[str]) -> tuple[str, str]:
        return key(match), _MODE_NAMES[match[3].lower()]

    names = "|".join(sorted(_MODE_NAMES, key=len, reverse=True))
    mode = rf"[\s-]?((?i:{names}))(?!\w)(?! key\b| mode\b| tune\b)"
    sign = re.sub("flat|sharp", lambda word: f"(?i:{word[0]})", _SIGN)
    reading.take(rf"\b([A-G]){sign}{mode}", "both", both, flags=0)
    reading.take(rf"\b(?:in|of|key\s?[:=]?)\s?([a-g]){_SIGN}{mode}", "both", both)
    reading.take(rf"\b([a-g])(#|b(?![a-z])|[\s-]sharp\b|[\s-]flat\b){mode}", "both", both)
    reading.take(r"\b([A-H])(i?s|es)?[\s-](Dur|Moll)\b", "both", _german)
    if pair := reading.found.pop("both", None):
        words = reading.words.pop("both")
        for name, value in zip(("key", "mode"), pair, strict=True):
            reading.found[name], reading.words[name] = value, words
    reading.take(rf"\b(?i:in|key of|in the key of|key\s?[:=]?)\s?([A-G]){sign}(?![\w-])", "key", key, flags=0)
    reading.take(r"\b([A-G])([\s-](?i:flat|sharp)\b|#|b\b)(?!\w)", "key", key, flags=0)


def _mean_major(reading: _Reading, given: Mapping[str, Any]) -> None:
    """Who says "in G" and no mode means major, where that key can be written in it."""
    key = reading.found.get("key")
    if (
        key
        and not given.get("abc")
        and given.get("mode") in (None, "any", "major")
        and key_of(key, "major").tonic == key
    ):
        reading.found.setdefault("mode", "major")
        reading.words.setdefault("mode", reading.words["key"])


def _german(match: re.Match[str]) -> tuple[str, str]:
    """As in "d-Moll", "Es-Dur", "h-Moll": these names are read among English words too."""
    letter, ending = match[1].upper(), (match[2] or "").lower()
    sign = {"": "", "is": "#", "es": "b", "s": "b"}[ending]
    if letter in "BH":
        letter, sign = "B", {"B": "b", "H": ""}[letter] or sign
    return letter + sign, {"dur": "major", "moll": "minor"}[match[3].lower()]


def _read_names(reading: _Reading, option: str) -> None:
    names: dict[str, dict[str, str]] = {
        "form": {form: form for form in reversed(FORMS)},
        "mode": {mode: mode for mode in MODES},
        "instrument": {name.replace("-", " "): name for name in INSTRUMENTS},
    }
    table = {**SYNONYMS[option], **names.get(option, {})}
    words = "|".join(sorted(table, key=len, reverse=True)).replace(" ", r"[\s-]")
    ending = "s?" if option in ("form", "instrument") else ""
    if option == "instrument":
        reading.drop(
            rf"\b(?:with|and)\s(?:an?\s)?(?:{words})\s(?:accompaniment|backing|chords)\b",
            "the backing has its own instruments",
        )
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
