"""Numbers and lengths of time in English words: "thirty-two", "one and a half minutes", "1:30"."""

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


def _any(words: dict[str, int]) -> str:
    return "|".join(words)


_BELOW_100 = rf"(?:(?:{_any(_TENS)})(?:[\s-](?:{_any(_ONES)}))?|{_any(_TEENS)}|{_any(_ONES)})"
DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:[.,]\d+)?)"
_BEGINS = r"(?<![\w.,:/#+−-])"  # no part of another number or word, nor negative
NUMBER = (
    rf"{_BEGINS}(?:{DIGITS}|(?:(?:an?|{_any(_ONES)})\shundred(?:\sand\s{_BELOW_100}|\s{_BELOW_100})?|zero|{_BELOW_100}"
    r"|an?)(?!\w))(?:\sand\sa\shalf(?!\w))?"
)
"""A pattern without groups for what `number` reads."""

_SECONDS = r"(?:seconds?|secs?)\b"
LENGTHS: tuple[str, ...] = (
    rf"{_BEGINS}(?P<minutes>\d{{1,3}}):(?P<seconds>[0-5]\d)(?![\d:/])(?:\s?(?:minutes?|mins?)\b)?",
    rf"{_BEGINS}(?P<minutes>\d+)\s?m(?:ins?)?\s?(?P<seconds>\d{{1,2}})\s?s?\b",
    rf"(?P<half>\bhalf(?:\s(?:an?|of\san?))?[\s-]minute\b|{_BEGINS}0?[.,]5\s?min(?:ute)?s?\b|½\s?(?:a\s)?minute\b)",
    r"(?P<quarters>\bthree[\s-]quarters|\b(?:a\s)?quarter)\s(?:of\s)?an?\sminute\b",
    rf"(?P<minutes>{NUMBER})[\s-]*(?:minutes?|mins?)\b"
    rf"(?:\s(?:and\s)?(?P<seconds>{NUMBER})(?:[\s-]*{_SECONDS}|(?=\s*(?:$|[,;.!?])))|(?P<more>\sand\sa\shalf)\b)?",
    rf"(?<!half )(?<!of )(?P<hours>{NUMBER})[\s-]*(?:hours?|hrs?)\b",
    rf"(?P<seconds>{NUMBER})[\s-]*{_SECONDS}",
    rf"{_BEGINS}(?P<seconds>{DIGITS})\s?s\b",
)
"""Patterns for what `seconds` reads, to be tried in this order."""


def number(text: str) -> float | int:
    """What a match of NUMBER says."""
    words = re.sub(r"\sand\sa\shalf$", "", text.lower())
    if re.match(r"\d", words):
        digits = words.replace(",", "") if re.fullmatch(r"\d{1,3}(?:,\d{3})+", words) else words.replace(",", ".")
        value = float(digits)
    else:
        value = 0.0
        for word in re.split(r"[\s-]", words):
            value = value * 100 if word == "hundred" else value + _VALUES.get(word, 0)
    return whole(value + 0.5 if words != text.lower() else value)


def seconds(match: re.Match[str]) -> float | int:
    """What a match of one of LENGTHS says."""
    said = {name: text for name, text in match.groupdict().items() if text}
    if "half" in said:
        return 30
    if "quarters" in said:
        return 45 if "three" in said["quarters"].lower() else 15
    minutes = 60 * number(said.get("hours", "zero")) + number(said.get("minutes", "zero")) + 0.5 * ("more" in said)
    return whole(60 * minutes + number(said.get("seconds", "zero")))


def whole(value: float) -> float | int:
    """An int where it is one."""
    return int(value) if value.is_integer() else value
