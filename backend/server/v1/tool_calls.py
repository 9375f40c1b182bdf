"""Tool calls in what a model says: found as the text comes, in the forms that the common chat templates teach.

Those are Hermes and Qwen (`<tool_call>{…}</tool_call>`), Mistral (`[TOOL_CALLS][{…}]`), Llama 3.1 (`<|python_tag|>` or
a bare `{"name": …, "parameters": …}`). Where a call must be made, a schema holds the model to the bare form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.common.errors import UnsupportedParameter
from backend.tasks.options.tools import Tool

_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_BARE = ("{", "[")
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments as the text of a JSON object."""

    name: str
    arguments: str


class Calls:
    """Takes pieces of text and gives what is no call; what may be one is held until the end tells."""

    def __init__(self, names: Iterable[str], single: bool) -> None:
        self._names = frozenset(names)
        self._single = single
        self._held = ""
        self._began = False
        self._calling = False

    def feed(self, piece: str) -> str:
        """The text that can be shown now that this piece came."""
        text = self._held + piece
        if not self._calling:
            self._calling = not self._began and text.lstrip().startswith(_BARE)
            place = min((at for mark in _MARKS if (at := text.find(mark)) >= 0), default=-1)
            if place >= 0:
                self._calling, self._held = True, text[place:]
                return self._shown(text[:place])
        shown = 0 if self._calling or not text.strip() else self._safe(text)
        self._held = text[shown:]
        return self._shown(text[:shown])

    def end(self) -> tuple[str, list[Call]]:
        """What was held: text, or the calls that it is."""
        calls = parse(self._held, self._names)
        if not calls:
            return self._held, []
        return "", calls[:1] if self._single else calls

    def _shown(self, text: str) -> str:
        self._began = self._began or bool(text.strip())
        return text

    @staticmethod
    def _safe(text: str) -> int:
        """How much of the text is surely not the beginning of a mark."""
        longest = max(map(len, _MARKS)) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(mark.startswith(text[at:]) for mark in _MARKS):
                return at
        return len(text)


def parse(text: str, names: frozenset[str]) -> list[Call]:
    """The calls that a text consists of; none if any part of it is something else."""
    text = text.strip()
    if text.startswith("<tool_call>"):
        bodies = _TAGGED.findall(text)
        written = [_json(body) for body in bodies]
    elif text.startswith("[TOOL_CALLS]"):
        written = _listed(_json(text.removeprefix("[TOOL_CALLS]")))
    else:
        written = _listed(_json(text.removeprefix("<|python_tag|>")))
    calls = [_call(value, names) for value in written]
    return [call for call in calls if call] if None not in calls else []


def calls_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The schema of one call of one of the tools, in the bare form. Raises UnsupportedParameter."""
    shared: dict[str, Any] = {}
    forms = []
    for tool in tools:
        parameters = dict(tool.function.parameters or {"type": "object"})
        named = [key for key in ("$defs", "definitions") if isinstance(parameters.get(key), dict)]
        for key, shapes in [(key, parameters.pop(key)) for key in named]:
            known = shared.setdefault(key, {})
            if any(known.get(name, shape) != shape for name, shape in shapes.items()):
                raise UnsupportedParameter(
                    f"tools: two functions define different shapes of one name under {key}.",
                    "Give the shapes different names.",
                    fields=["tools"],
                )
            known.update(shapes)
        properties = {"name": {"enum": [tool.function.name]}, "arguments": parameters}
        required = list(properties)
        forms.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return {**shared, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # whatever the model wrote is no reason to fail
        return None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _call(value: Any, names: frozenset[str]) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
