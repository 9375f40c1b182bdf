"""Parses tool calls from the generated text while it streams, in the formats of the common chat templates.

These are Hermes and Qwen (`<tool_call>{…}</tool_call>`), Mistral (`[TOOL_CALLS][{…}]`), Llama 3.1 (`<|python_tag|>` or
bare `{"name": …, "parameters": …}`). If a call is required, a JSON schema forces the bare format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_BARE = ("{", "[")
_BARE_NAME = re.compile(r'\[?\s*\{\s*"name"\s*:\s*"([^"]*)("?)')
_TELLING = 4  # characters of a mark that cannot be an accident
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call: the function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallParser:
    """Separates text from tool calls. Text that may be a call is held back until the end."""

    def __init__(self, names: Iterable[str], single: bool) -> None:
        self._names = frozenset(names)
        self._single = single
        self._held = ""
        self._has_shown_text = False
        self._calling = False

    def feed(self, piece: str) -> str:
        """Add a piece of text. Returns the text that can be shown now."""
        text = self._held + piece
        if not self._calling:
            self._calling = not self._has_shown_text and text.lstrip().startswith(_BARE)
            place = min((at for mark in _MARKS if (at := text.find(mark)) >= 0), default=-1)
            if place >= 0:
                self._calling, self._held = True, text[place:]
                return self._mark_shown(text[:place])
        shown = 0 if self._calling or not text.strip() else self._safe(text)
        self._held = text[shown:]
        return self._mark_shown(text[:shown])

    def end(self) -> tuple[str, list[Call]]:
        """Return the rest of the text, and the calls. One of the two is empty."""
        calls = parse(self._held, self._names)
        if not calls:
            return self._held, []
        return "", calls[:1] if self._single else calls

    def end_cut(self) -> tuple[str, list[Call]]:
        """Return the rest of a text that was cut, without its incomplete call, and the complete calls."""
        calls = parse(self._held, self._names, is_cut=True)
        if calls or _begins_call(self._held, self._names):
            return "", calls[:1] if self._single else calls
        return self._held, []

    def _mark_shown(self, text: str) -> str:
        self._has_shown_text = self._has_shown_text or bool(text.strip())
        return text

    @staticmethod
    def _safe(text: str) -> int:
        """Return the length of the text that cannot be the start of a mark."""
        longest = max(map(len, _MARKS)) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(mark.startswith(text[at:]) for mark in _MARKS):
                return at
        return len(text)


def parse(text: str, names: frozenset[str], is_cut: bool = False) -> list[Call]:
    """Return the calls in a text; empty if any part of the text is not a call. `is_cut`: the last may be incomplete."""
    text = text.strip()
    if text.startswith("<tool_call>"):
        bodies = _TAGGED.findall(text)
        values = [_json(body) for body in bodies]
    elif text.startswith("[TOOL_CALLS]"):
        values = _listed(_json(text.removeprefix("[TOOL_CALLS]")))
    else:
        values = _listed(_json(text.removeprefix("<|python_tag|>")))
    calls = [_call(value, names) for value in values]
    if is_cut and calls[-1] is None:
        calls.pop()
    return [call for call in calls if call] if None not in calls else []


def _begins_call(text: str, names: frozenset[str]) -> bool:
    """Return whether a text is the beginning of a call: of a mark, or of an object with the name of a tool."""
    text = text.strip()
    if text.startswith(_MARKS) or (len(text) >= _TELLING and any(mark.startswith(text) for mark in _MARKS)):
        return True
    if not (name := _BARE_NAME.match(text)):
        return len(text) >= _TELLING and '{"name":"'.startswith("".join(text.removeprefix("[").split()))
    return name[1] in names if name[2] else any(known.startswith(name[1]) for known in names)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # invalid output of the model is not an error of the request
        return None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _call(value: Any, names: frozenset[str]) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
