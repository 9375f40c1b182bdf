"""A rule-based parser for prompts such as "a slow sad tune in D minor, 30 seconds". It returns options.

Explicit options win over the prompt. Every word is accounted for: understood, or ignored with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from backend.common.types import JsonObject
from backend.tasks.music.choices import INSTRUMENTS, tempo_of
from backend.tasks.music.length import fit_tempo, format_meter, parse_meter_name
from backend.tasks.music.number_words import DIGITS, DURATIONS, NUMBER, parse_duration_s, parse_number
from backend.tasks.music.plan import FORMS, MODES
from backend.tasks.music.prompt_words import CLAUSE_WORDS, FILLERS, FORM_BY_SPEED, NEGATIONS, SYNONYMS
from backend.tasks.music.spelling import key_of

UNKNOWN = "not in the vocabulary"
NEGATED = "negations are not supported: describe what the tune should be"


@dataclass(frozen=True)
class ParsedPrompt:
    """The result of parsing: option values by name, and ignored words, each as `{words, reason}`."""

    options: JsonObject
    ignored: list[dict[str, str]]

    def summary(self) -> str:
        """Return both lists as sentences for the user; empty for an empty prompt."""
        parts = []
        if self.options:
            understood = [f"{name.replace('_bpm', '')} {_format_value(value)}" for name, value in self.options.items()]
            parts.append(f"Understood: {', '.join(understood)}.")
        if self.ignored:
            ignored = ["“{words}” ({reason})".format(**each) for each in self.ignored]
            parts.append(f"Ignored: {', '.join(ignored)}.")
        return " ".join(parts)


class _PromptText:
    """The prompt during parsing. Understood words are removed from `text`.

    `options` are the values found, `sources` the words that set them, `ignored` the words that set no option.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.options: JsonObject = {}
        self.sources: dict[str, str] = {}
        self.ignored: list[dict[str, str]] = []

    def extract(
        self, pattern: str, name: str, value: Callable[[re.Match[str]], Any], flags: int = re.IGNORECASE
    ) -> None:
        """Remove every match from the text and set an option from the first one. Later values are ignored."""

        def strike(match: re.Match[str]) -> str:
            new_value = value(match)
            if self.options.setdefault(name, new_value) != new_value:
                reason = f"already set by “{self.sources[name]}”"
                self.ignored.append({"words": match[0].strip(), "reason": reason})
            self.sources.setdefault(name, match[0].strip())
            return " ; "

        self.text = re.sub(pattern, strike, self.text, flags=flags)

    def ignore(self, pattern: str, reason: str) -> None:
        """Remove every match from the text and record it as ignored."""

        def strike(match: re.Match[str]) -> str:
            self.ignored.append({"words": match[0].strip(), "reason": reason})
            return " ; "

        self.text = re.sub(pattern, strike, self.text, flags=re.IGNORECASE)


def parse_prompt(text: str, given: Mapping[str, Any]) -> ParsedPrompt:
    """Parse a prompt. `given` are the explicit options, which win over the prompt."""
    reading = _PromptText(text.replace("♯", "#").replace("♭", "b").replace("’", "'"))
    _parse_names(reading, "backing")  # first, since "no bass" is a backing and not a negation
    _ignore_negations(reading)
    _parse_numbers(reading)
    _parse_key(reading)
    for option in ("form", "mode", "meter", "instrument", "speed"):
        _parse_names(reading, option)
    _default_to_major(reading, given)
    options, ignored = reading.options, reading.ignored
    if speed := options.pop("speed", None):
        _apply_speed(speed, reading, given)
    for name in list(options):
        exclusive = {"bars": "seconds", "seconds": "bars"}.get(name)
        if given.get(name) not in (None, "any", options[name]):
            reason = f"the option {name} is set"
        elif name == "bars" and "seconds" in options:
            reason = f"already set by “{reading.sources['seconds']}”"
        elif exclusive and given.get(exclusive) is not None:
            reason = f"the option {exclusive} is set"
        else:
            continue
        ignored.append({"words": reading.sources[name], "reason": reason})
        del options[name]
    for piece in re.split(r"[;,.!?:()~=\"“”]+", reading.text):
        if unknown := [word for word in piece.split() if word.lower() not in FILLERS]:
            ignored.append({"words": " ".join(unknown), "reason": UNKNOWN})
    return ParsedPrompt(options, ignored)


def _ignore_negations(reading: _PromptText) -> None:
    """Ignore each negation with the words that follow it, up to the end of the clause."""
    negation = "|".join(NEGATIONS).replace(" ", r"\s")
    clause_word = rf"(?:{'|'.join(CLAUSE_WORDS)})\b"
    negated_word = rf"(?!(?:{clause_word}|[;,.!?:()]))[^\s;,.!?:()]+"
    reading.ignore(
        rf"(?<![\w'])(?:do\s|and\s|but\s)?(?:{negation})(?![\w'])(?:\s+(?:too|so|very)\s+{negated_word}|(?:\s+{clause_word})*(?:\s+{negated_word})*)",
        NEGATED,
    )


def _parse_numbers(reading: _PromptText) -> None:
    def amount(match: re.Match[str]) -> float | int:
        return parse_number(match[1])

    reading.extract(rf"\bseconds\s*[:=]\s*({DIGITS})(?![\w/])", "seconds", amount)
    for length in DURATIONS:
        reading.extract(rf"{length}(?:\s+long\b)?", "seconds", parse_duration_s)
    reading.extract(rf"({NUMBER})[\s-]*(?:bars?|measures?)\b(?:\s+long\b)?", "bars", amount)
    reading.extract(r"\bbars\s*[:=]?\s*(\d+)\b", "bars", amount)
    reading.extract(rf"({NUMBER})[\s-]*(?:bpm|beats\s(?:per|an?)\sminute)\b", "tempo_bpm", amount)
    reading.extract(
        rf"\b(?:tempo|bpm|quarter|crotchet)\s*(?:of|at|is|[:=])?\s*(?:about\s)?({DIGITS})(?![\w/])", "tempo_bpm", amount
    )
    reading.extract(r"\bseed\s*(?:of|is|[:=#])?\s*(\d+)\b", "seed", amount)
    reading.extract(
        rf"({NUMBER})[\s-]+(?:(?:different|other)\s)?(?:variations?|variants?|versions?|takes?|tunes)\b",
        "variations",
        amount,
    )
    reading.extract(r"\bvariations\s*[:=]?\s*(\d+)\b", "variations", amount)
    meters = "|".join(sorted({format_meter(meter) for each in FORMS.values() for meter in each}))
    reading.extract(rf"(?<![\d/])({meters})(?![\d/])", "meter", lambda match: match[1])


_MODE_NAMES = {
    **{mode: mode for mode in MODES}, "maj": "major", "min": "minor", "m": "minor", "dor": "dorian",
    "mix": "mixolydian", "ionian": "major", "aeolian": "minor",
}  # fmt: skip
_SIGN = r"\s?(#|b(?![a-z])|[\s-]?(?:sharp|flat)\b)?"


def _parse_key(reading: _PromptText) -> None:
    """Parse keys: a letter with a mode. A lower-case one also needs an accidental or "in", since "a" is ambiguous."""

    def key(match: re.Match[str]) -> str:
        sign = (match[2] or "").strip(" -").lower()
        return match[1].upper() + {"sharp": "#", "flat": "b"}.get(sign, sign)

    def both(match: re.Match[str]) -> tuple[str, str]:
        return key(match), _MODE_NAMES[match[3].lower()]

    names = "|".join(sorted(_MODE_NAMES, key=len, reverse=True))
    mode = rf"[\s-]?((?i:{names}))(?!\w)(?! key\b| mode\b| tune\b)"
    sign = re.sub("flat|sharp", lambda word: f"(?i:{word[0]})", _SIGN)
    reading.extract(rf"\b([A-G]){sign}{mode}", "both", both, flags=0)
    reading.extract(rf"\b(?:in|of|key\s?[:=]?)\s?([a-g]){_SIGN}{mode}", "both", both)
    reading.extract(rf"\b([a-g])(#|b(?![a-z])|[\s-]sharp\b|[\s-]flat\b){mode}", "both", both)
    reading.extract(r"\b([A-H])(i?s|es)?[\s-](Dur|Moll)\b", "both", _german_key)
    if pair := reading.options.pop("both", None):
        words = reading.sources.pop("both")
        for name, value in zip(("key", "mode"), pair, strict=True):
            reading.options[name], reading.sources[name] = value, words
    reading.extract(rf"\b(?i:in|key of|in the key of|key\s?[:=]?)\s?([A-G]){sign}(?![\w-])", "key", key, flags=0)
    reading.extract(r"\b([A-G])([\s-](?i:flat|sharp)\b|#|b\b)(?!\w)", "key", key, flags=0)


def _default_to_major(reading: _PromptText, given: Mapping[str, Any]) -> None:
    """Set major as the mode of a key without one ("in G"), if that key exists in major."""
    key = reading.options.get("key")
    if (
        key
        and not given.get("abc")
        and given.get("mode") in (None, "any", "major")
        and key_of(key, "major").tonic == key
    ):
        reading.options.setdefault("mode", "major")
        reading.sources.setdefault("mode", reading.sources["key"])


def _german_key(match: re.Match[str]) -> tuple[str, str]:
    """Return the key and mode of a German name, such as "d-Moll", "Es-Dur", "h-Moll"."""
    letter, ending = match[1].upper(), (match[2] or "").lower()
    sign = {"": "", "is": "#", "es": "b", "s": "b"}[ending]
    if letter in "BH":
        letter, sign = "B", {"B": "b", "H": ""}[letter] or sign
    return letter + sign, {"dur": "major", "moll": "minor"}[match[3].lower()]


def _parse_names(reading: _PromptText, option: str) -> None:
    names: dict[str, dict[str, str]] = {
        "form": {form: form for form in reversed(FORMS)},
        "mode": {mode: mode for mode in MODES},
        "instrument": {name.replace("-", " "): name for name in INSTRUMENTS},
    }
    table = {**SYNONYMS[option], **names.get(option, {})}
    words = "|".join(sorted(table, key=len, reverse=True)).replace(" ", r"[\s-]")
    ending = "s?" if option in ("form", "instrument") else ""
    if option == "instrument":
        reading.ignore(
            rf"\b(?:with|and)\s(?:an?\s)?(?:{words})\s(?:accompaniment|backing|chords)\b",
            "the instruments of the backing are fixed",
        )
    reading.extract(rf"\b({words}){ending}\b", option, partial(_lookup_name, table))


def _lookup_name(table: dict[str, str], match: re.Match[str]) -> str:
    return table[re.sub(r"[\s-]", " ", match[1].lower())]


def _apply_speed(speed: str, reading: _PromptText, given: Mapping[str, Any]) -> None:
    """Set the tempo halfway to the slow or fast end of the form's range. The default form is an air or a reel."""

    def value_of(name: str) -> Any:
        return reading.options.get(name) or (None if given.get(name) in (None, "any") else given[name])

    source = reading.sources["speed"]
    if "tempo_bpm" in reading.options:
        reading.ignored.append({"words": source, "reason": f"already set by “{reading.sources['tempo_bpm']}”"})
        return
    meter = parse_meter_name(value_of("meter"))
    forms = [FORM_BY_SPEED[speed], *FORMS]
    default_form = next((each for each in forms if meter in (None, *FORMS[each])), forms[0])
    form = value_of("form") or default_form
    if form == default_form:
        reading.options["form"], reading.sources["form"] = form, reading.sources.get("form", source)
    meter = meter or FORMS[form][0]
    tempo = tempo_of(form, meter)
    target = round((tempo.usual + (tempo.slow if speed == "slow" else tempo.fast)) / 2)
    seconds = value_of("seconds")
    fitted = fit_tempo(seconds, meter, replace(tempo, usual=target)) if seconds and math.isfinite(seconds) else None
    reading.options["tempo_bpm"], reading.sources["tempo_bpm"] = fitted[1] if fitted else target, source


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
