"""JSON Schemas that make a model call a tool, or either call one or answer in a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.common.types import JsonObject
from backend.tasks.options.tools import Tool

_DATA = frozenset({"const", "enum", "default", "examples"})  # their values are data, not schemas
_DEFINITION = "#/$defs/"


def calls_schema(tools: Sequence[Tool], answer: JsonObject | None = None) -> JsonObject:
    """Return the schema of one call of one of the tools, or of an `answer` that fits another schema. Optional.

    Each schema becomes a definition, so that definitions of the same name in two of them do not collide.
    """
    definitions: JsonObject = {}
    forms: list[JsonObject] = []
    for number, tool in enumerate(tools):
        definitions[f"f{number}"] = _embedded(close_parameters(tool.function.parameters), f"f{number}")
        properties = {"name": {"enum": [tool.function.name]}, "arguments": {"$ref": f"{_DEFINITION}f{number}"}}
        required = list(properties)
        forms.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    if answer is not None:
        definitions["answer"] = _embedded(answer, "answer")
        forms.append({"$ref": f"{_DEFINITION}answer"})
    return {"$defs": definitions, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}


def close_parameters(parameters: JsonObject | None) -> JsonObject:
    """Return the schema of a call's arguments. Without parameters, or with no properties, they are `{}`."""
    schema = close(parameters or {})
    is_reference = not schema.keys().isdisjoint(("$ref", "anyOf", "oneOf", "allOf"))
    if is_reference:
        return schema
    return {"type": "object", "properties": {}, "additionalProperties": False, **schema}


def close(schema: JsonObject) -> JsonObject:
    """Return a schema in which objects have no other properties than those that it names.

    That is what `additionalProperties: false` means, for each object with `properties` that does not mention it. The
    parts of `allOf` stay as they are, since each of them must allow the properties of the others.
    """
    closed: JsonObject = _closed(schema)
    return closed


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    parts: JsonObject = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
            parts[key] = {name: _closed(part) for name, part in value.items()}
        else:
            parts[key] = value if key in _DATA or key == "allOf" else _closed(value)
    if "properties" in parts and "allOf" not in parts:
        parts.setdefault("additionalProperties", False)
    return parts


def _embedded(schema: JsonObject, name: str) -> JsonObject:
    """Return a schema as a definition: its references point to itself at its new place."""
    root = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    moved: JsonObject = _moved(root, f"{_DEFINITION}{name}")
    return moved


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else value
        if key in _DATA
        else _moved(value, place)
        for key, value in schema.items()
    }
