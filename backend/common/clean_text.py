"""One rule for text from other processes, drivers and files: safe to encode as UTF-8, and safe to show.

`encodable` alone is for text that must keep every character, such as generated text: joiners and direction marks belong
to Persian and to emoji. `clean` is for all other text, `clean_name` for names. `escape` shows what it does not trust.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

NAME_LIMIT = 100
UNNAMED = "unnamed"  # a name without a visible character
TEXT_LIMIT = 4000  # characters of one text of a child; longer ones are cut
MARKS_LIMIT = 5  # combining marks of one letter: more than any script has
DEPTH_LIMIT = 30
ENTRY_LIMIT = 20_000  # of one frame
INTEGER_LIMIT = 2**128  # file ids of ReFS are that long

# Escape sequences of terminals: CSI, OSC (title, links) up to its end, and the short ones (ECMA-48).
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]"
)
# Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt), other format controls (Cf) without a glyph, blank
# letters, line and paragraph separators, and noncharacters. Format controls with a glyph, such as Arabic U+0600, stay.
_JOINERS_AND_MARKS = "\u200c-\u200f\ufe00-\ufe0f"
_INVISIBLE = (
    "\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2028-\u202e\u2060-\u206f\u2800\u3164\ufdd0-\ufdef"
    "\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_HIDDEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}{_JOINERS_AND_MARKS}]")
_UNSAFE = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff{_INVISIBLE}]")


def encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: a file name that is not UTF-8 has them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def restore_path(text: str) -> str:
    """Return the path that `encodable` made a text of: its bytes that are not UTF-8 as lone surrogates again."""
    return re.sub(r"\\udc[89a-f][0-9a-f]", lambda match: chr(int(match[0][2:], 16)), text)


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text as it may be shown: without control and invisible characters, except tab and line feed.

    Lone surrogates are escaped. A text longer than `limit` characters is cut.
    """
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub("", _ANSI.sub("", encodable(text)))


def clean_name(name: object, limit: int = NAME_LIMIT) -> str:
    """Return a name in one line, at most `limit` characters long; `unnamed` if nothing visible is left."""
    text = " ".join(clean(re.sub(r"[\x00-\x1f\x85]", " ", _ANSI.sub("", str(name)[: limit * 10]))).split())
    return _with_few_marks(text)[:limit].rstrip() or UNNAMED


def _with_few_marks(text: str) -> str:
    """Return the text without combining marks that have no letter, or that follow MARKS_LIMIT others.

    Many of them cover the lines above and below.
    """
    if text.isascii():
        return text
    kept, marks = [], MARKS_LIMIT  # a mark at the start would join the text before the name
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= MARKS_LIMIT:
            kept.append(character)
        if character == " ":
            marks = MARKS_LIMIT
    return "".join(kept)


def clean_data(value: Any, is_exact: bool = False) -> Any:
    """Return JSON data with each string cleaned, keys too. `is_exact`: only lone surrogates are escaped.

    Raises ValueError for numbers that JSON or 128 bits cannot hold, for deep data and for too many entries.
    """
    return _clean_value(value, encodable if is_exact else clean, 0, [ENTRY_LIMIT])


def _clean_value(value: Any, rule: Callable[[str], str], depth: int, left: list[int]) -> Any:
    """Return the cleaned value at a depth. `left` counts down the entries that the data may still have."""
    if isinstance(value, str):
        return rule(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        if -INTEGER_LIMIT <= value < INTEGER_LIMIT:  # false for NaN
            return value
        raise ValueError("a number is out of range")
    if depth > DEPTH_LIMIT:
        raise ValueError("it is nested too deeply")
    left[0] -= len(value)
    if left[0] < 0:
        raise ValueError(f"it has more than {ENTRY_LIMIT} entries")
    if isinstance(value, dict):
        return {rule(key): _clean_value(inner, rule, depth + 1, left) for key, inner in value.items()}
    return [_clean_value(inner, rule, depth + 1, left) for inner in value]


def json_safe(value: Any) -> Any:
    """Return data that JSON in UTF-8 can hold: lone surrogates escaped, NaN and infinity as None, other types as text.

    It is the last line, for what no border cleaned.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) or value is None else encodable(str(value))


def escape(text: str) -> str:
    """Return the text with each character escaped that could affect a terminal or hide. Joiners and marks stay."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
