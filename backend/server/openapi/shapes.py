"""Writes the golden file of shapes, `frontend/schema.json`: Device, Runtime, Model, Job, Receipt and every event.

`python -m backend.server.openapi.shapes` writes the file. A test compares it with the code and with answers of the real
server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from backend.common.types import Artifact, Device, Hardware, Job, Model, Problem, Progress, Receipt
from backend.runtimes.types import Runtime

FILE = Path(__file__).parents[3] / "frontend" / "schema.json"
NOUNS = (Device, Hardware, Runtime, Model, Job, Receipt)
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
# What each event's data has beside `job_id` and `at`; a dataclass gives all its fields.
EVENTS: dict[str, Any] = {
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
# What stands there only if the job asked for it.
ON_REQUEST: dict[str, Any] = {
    "token": {"logprobs": {"type": "array", "items": {"properties": {**_LOGPROB, "top_logprobs": _LIKELIEST}}}}
}


def shapes() -> dict[str, Any]:
    """JSON Schemas by name; those of events are named `event: NAME`."""
    found = {kind.__name__: _schema(kind) for kind in NOUNS}
    for name, shape in EVENTS.items():
        found[f"event: {name}"] = _event(name, shape)
    return found


def _event(name: str, shape: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"type": "object", "properties": shape} if isinstance(shape, dict) else _schema(shape)
    properties = {"job_id": _TEXT, "at": _TEXT, **own["properties"]}
    on_request = ON_REQUEST.get(name, {})
    return {**own, "title": name, "properties": {**properties, **on_request}, "required": sorted(properties)}


def _schema(kind: Any) -> dict[str, Any]:
    """The schema of what is sent, where every field stands, also those with a default."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    for each in (schema, *schema.get("$defs", {}).values()):
        if "properties" in each:
            each["required"] = sorted(each["properties"])
    return schema


def text() -> str:
    """The file as it should be."""
    return json.dumps(shapes(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
