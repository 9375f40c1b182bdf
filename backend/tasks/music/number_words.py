"""Patterns and parsers for numbers and durations in English: "thirty-two", "one and a half minutes", "1:30"."""

from __future__ import annotations

import re

_ONES = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
}  # fmt: skip
_TEENS = {
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_VALUES = {"a": 1, "an": 1, "zero": 0, **_ONES, **_TEENS, **_TENS}


def _alternatives(words: dict[str, int]) -> str:
    return "|".join(words)


_ONE, _TEEN, _TEN = (_alternatives(words) for words in (_ONES, _TEENS, _TENS))
_BELOW_100 = rf"(?:(?:{_TEN})(?:[\s-](?:{_ONE}))?|{_TEEN}|{_ONE})"
DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:[.,]\d+)?)"
_START = r"(?<![\w.,:/#+−-])"  # not inside another number or word, and not negative
NUMBER = (
    rf"{_START}(?:{DIGITS}|(?:(?:an?|{_ONE})\shundred(?:\sand\s{_BELOW_100}|\s{_BELOW_100})?|zero|{_BELOW_100}"
    r"|an?)(?!\w))(?:\sand\sa\shalf(?!\w))?"
)
"""A pattern without groups for numbers; `parse_number` parses its match."""

_SECONDS = r"(?:seconds?|secs?)\b"
DURATIONS: tuple[str, ...] = (
    rf"{_START}(?P<minutes>\d{{1,3}}):(?P<seconds>[0-5]\d)(?![\d:/])(?:\s?(?:minutes?|mins?)\b)?",
    rf"{_START}(?P<minutes>\d+)\s?m(?:ins?)?\s?(?P<seconds>\d{{1,2}})\s?s?\b",
    rf"(?P<half>\bhalf(?:\s(?:an?|of\san?))?[\s-]minute\b|{_START}0?[.,]5\s?min(?:ute)?s?\b|½\s?(?:a\s)?minute\b)",
    r"(?P<quarters>\bthree[\s-]quarters|\b(?:a\s)?quarter)\s(?:of\s)?an?\sminute\b",
    rf"(?P<minutes>{NUMBER})[\s-]*(?:minutes?|mins?)\b"
    rf"(?:\s(?:and\s)?(?P<seconds>{NUMBER})(?:[\s-]*{_SECONDS}|(?=\s*(?:$|[,;.!?])))|(?P<more>\sand\sa\shalf)\b)?",
    rf"(?<!half )(?<!of )(?P<hours>{NUMBER})[\s-]*(?:hours?|hrs?)\b",
    rf"(?P<seconds>{NUMBER})[\s-]*{_SECONDS}",
    rf"{_START}(?P<seconds>{DIGITS})\s?s\b",
)
"""Patterns for durations, to be tried in this order; `parse_duration_s` parses their matches."""


def parse_number(text: str) -> float | int:
    """Return the value of a match of NUMBER."""
    text_without_half = re.sub(r"\sand\sa\shalf$", "", text.lower())
    if re.match(r"\d", text_without_half):
        digits = (
            text_without_half.replace(",", "")
            if re.fullmatch(r"\d{1,3}(?:,\d{3})+", text_without_half)
            else text_without_half.replace(",", ".")
        )
        value = float(digits)
    else:
        value = 0.0
        for word in re.split(r"[\s-]", text_without_half):
            value = value * 100 if word == "hundred" else value + _VALUES.get(word, 0)
    return as_int(value + 0.5 if text_without_half != text.lower() else value)


def parse_duration_s(match: re.Match[str]) -> float | int:
    """Return the seconds of a match of one of DURATIONS."""
    groups = {name: text for name, text in match.groupdict().items() if text}
    if "half" in groups:
        return 30
    if "quarters" in groups:
        return 45 if "three" in groups["quarters"].lower() else 15
    minutes = (
        60 * parse_number(groups.get("hours", "zero"))
        + parse_number(groups.get("minutes", "zero"))
        + 0.5 * ("more" in groups)
    )
    return as_int(60 * minutes + parse_number(groups.get("seconds", "zero")))


def as_int(value: float) -> float | int:
    """Return an int if the value is integral."""
    return int(value) if value.is_integer() else value
