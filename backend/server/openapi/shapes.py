"""Writes `frontend/schema.json`, the JSON Schemas of Device, Runtime, Model, Job, Receipt … and every event.

`python -m backend.server.openapi.shapes` writes the file. A test compares it with the code and with responses of a real
server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from backend.common.types import (
    Artifact,
    Device,
    Hardware,
    Importable,
    Job,
    JsonObject,
    MissingDevice,
    Model,
    Problem,
    Progress,
    Receipt,
)
from backend.runtimes.types import Runtime

FILE = Path(__file__).parents[3] / "frontend" / "schema.json"
NOUNS = (Device, Hardware, MissingDevice, Runtime, Model, Importable, Job, Receipt)
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_NUMBER = {"type": "integer", "minimum": 0}
_LOGPROB = {
    "id": _NUMBER,
    "token": _TEXT,
    "bytes": {"type": "array", "items": _NUMBER},
    "logprob": {"type": "number"},
}
_LIKELIEST = {"type": "array", "items": {"type": "object", "properties": _LOGPROB, "required": sorted(_LOGPROB)}}
# The data of each event in addition to `job_id` and `at`. A dataclass means all its fields.
EVENTS: JsonObject = {
    "queued": {"position": _COUNT},
    "loading": {"model": _TEXT, "device": _TEXT, "engine": _TEXT},
    "running": {},
    "progress": Progress,
    "token": {"text": _TEXT, "count": _NUMBER},
    "fallback": {"from": _TEXT, "to": _TEXT, "code": _TEXT, "reason": _TEXT},
    "artifact": Artifact,
    "done": Job,
    "error": Problem,
    "cancelled": Job,
    "interrupted": Problem,
}
# Optional data that is sent only if the job requested it.
ON_REQUEST: JsonObject = {
    "token": {"logprobs": {"type": "array", "items": {"properties": {**_LOGPROB, "top_logprobs": _LIKELIEST}}}}
}


def shapes() -> JsonObject:
    """Return the JSON Schemas by name; those of events are named `event: NAME`."""
    schemas = {kind.__name__: _schema(kind) for kind in NOUNS}
    for name, shape in EVENTS.items():
        schemas[f"event: {name}"] = _event(name, shape)
    return schemas


def _event(name: str, shape: Any) -> JsonObject:
    own: JsonObject = {"type": "object", "properties": shape} if isinstance(shape, dict) else _schema(shape)
    properties = {"job_id": _TEXT, "at": _TEXT, **own["properties"]}
    on_request = ON_REQUEST.get(name, {})
    return {**own, "title": name, "properties": {**properties, **on_request}, "required": sorted(properties)}


def _schema(kind: Any) -> JsonObject:
    """Return the schema of what is sent: every field is present, also one with a default."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    for each in (schema, *schema.get("$defs", {}).values()):
        if "properties" in each:
            each["required"] = sorted(each["properties"])
    return schema


def text() -> str:
    """Return the content of the file."""
    return json.dumps(shapes(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
