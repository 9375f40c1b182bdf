"""Parses tool calls from the generated text while it streams, in the formats of the common chat templates.

These are Hermes and Qwen (`<tool_call>{…}</tool_call>`), Mistral (`[TOOL_CALLS][{…}]`), Llama 3.1 (`<|python_tag|>` or
bare `{"name": …, "parameters": …}`). If a call is required, a JSON schema forces the bare format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.common.errors import UnsupportedParameter
from backend.common.types import JsonObject
from backend.tasks.options.tools import Tool

_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_BARE = ("{", "[")
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


def parse(text: str, names: frozenset[str]) -> list[Call]:
    """Return the calls in a text; empty if any part of the text is not a call."""
    text = text.strip()
    if text.startswith("<tool_call>"):
        bodies = _TAGGED.findall(text)
        values = [_json(body) for body in bodies]
    elif text.startswith("[TOOL_CALLS]"):
        values = _listed(_json(text.removeprefix("[TOOL_CALLS]")))
    else:
        values = _listed(_json(text.removeprefix("<|python_tag|>")))
    calls = [_call(value, names) for value in values]
    return [call for call in calls if call] if None not in calls else []


def calls_schema(tools: Sequence[Tool]) -> JsonObject:
    """Return the JSON schema of one call of one of the tools, in the bare format. Raises UnsupportedParameter."""
    shared: JsonObject = {}
    forms = []
    for tool in tools:
        parameters = dict(tool.function.parameters or {"type": "object"})
        shared_keys = [key for key in ("$defs", "definitions") if isinstance(parameters.get(key), dict)]
        for key, shapes in [(key, parameters.pop(key)) for key in shared_keys]:
            definitions = shared.setdefault(key, {})
            if any(definitions.get(name, shape) != shape for name, shape in shapes.items()):
                raise UnsupportedParameter(
                    f"tools: two functions define different schemas of the same name under {key}.",
                    "Give the schemas different names.",
                    fields=["tools"],
                )
            definitions.update(shapes)
        properties = {"name": {"enum": [tool.function.name]}, "arguments": parameters}
        required = list(properties)
        forms.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return {**shared, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}


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
