"""The description at /openapi.json: FastAPI's own, completed with what every route can answer and in which shape.

A route that says nothing of its answer gives a Job with 202, and what `_SHAPES` has for it otherwise; a test asks the
real server for every route and holds its answers against this.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from backend.server.openapi.shapes import shapes
from backend.server.v1.errors import is_v1

_EVERY = {
    400: "The request is not HTTP, or not JSON, as it should be",
    401: "The server wants its token",
    403: "Pages of other origins may not use this server",
    421: "The Host is not one of this server's names",
    503: "The server is stopping",
}
_WITH_BODY = {
    413: "The body is too large",
    415: "The body is of another type",
    422: "The request is not valid",
    507: "The disk is full",
}
_REF = "#/components/schemas/"
_TEXT, _WHOLE, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def _one(name: str) -> dict[str, Any]:
    return {"$ref": _REF + name}


def _many(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _one(name)}


def _object(may: dict[str, Any] | None = None, /, **must: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**must, **(may or {})}, "required": sorted(must)}


_MAYBE_TEXT = {"type": ["string", "null"]}
_NOTE = _object(subject=_TEXT, code=_TEXT, detail=_MAYBE_TEXT, remedy=_MAYBE_TEXT)
_DEVICES = _object(
    devices=_many("Device"),
    hardware=_many("Hardware"),
    default=_MAYBE_TEXT,
    default_reason=_TEXT,
    probing={"type": "boolean"},
    loaded={"type": "array", "items": {"type": "object"}},
)
_CARD = _object(id=_TEXT, object={"const": "model"}, created=_WHOLE, owned_by=_TEXT)
_COMPLETION = _object(
    id=_TEXT, object=_TEXT, created=_WHOLE, model=_TEXT, choices={"type": "array"}, usage={"type": "object"}
)
_SHAPES = {
    "get /api/health": _object(
        {"problems": {"type": "array", "items": _NOTE}},
        status={"enum": ["starting", "ok", "degraded"]},
        version=_TEXT,
        uptime_s=_NUMBER,
        devices={"type": "object", "additionalProperties": _WHOLE},
        jobs=_object(queued=_WHOLE, running=_WHOLE),
    ),
    "get /api/devices": _DEVICES,
    "post /api/devices/refresh": _DEVICES,
    "post /api/devices/{device_id}/release": _DEVICES,
    "get /api/models": _object(models=_many("Model")),
    "get /api/runtimes": _object(runtimes=_many("Runtime"), best=_MAYBE_TEXT, best_reason=_TEXT),
    "post /api/runtimes/{name}/rollback": _one("Runtime"),
    "get /api/jobs": _object(jobs=_many("Job"), next=_MAYBE_TEXT),
    "get /api/bench": _object(measurements={"type": "array", "items": {"type": "object"}}),
    "get /v1/models": _object(object={"const": "list"}, data={"type": "array", "items": _CARD}),
    "get /v1/models/{model_id}": _CARD,
    "post /v1/chat/completions": _COMPLETION,
    "post /v1/completions": _COMPLETION,
    "post /v1/embeddings": _object(object={"const": "list"}, data={"type": "array"}, usage={"type": "object"}),
}
_EVENT = _object({"id": _TEXT, "event": _TEXT}, data=_TEXT)
_OPENAI_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, code=_TEXT, param=_MAYBE_TEXT))


def install(app: FastAPI) -> None:
    """Lets the application describe itself whole."""
    described = app.openapi

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(described())
        return described()

    app.openapi = whole  # type: ignore[method-assign]


def _complete(api: dict[str, Any]) -> None:
    components = api["components"]["schemas"]
    for name, shape in shapes().items():
        if not name.startswith("event: "):
            inner = shape.pop("$defs", {})
            components |= {key: _hoisted(value) for key, value in {**inner, name: shape}.items()}
    components["OpenAIError"] = _OPENAI_ERROR
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            _complete_route(path, method, route)


def _complete_route(path: str, method: str, route: dict[str, Any]) -> None:
    answers = route["responses"]
    refusals = {**_EVERY, **(_WITH_BODY if method in ("post", "put", "patch") else {})}
    for status, words in refusals.items():
        answers.setdefault(str(status), {"description": words})
    for status, answer in answers.items():
        if "text/event-stream" in answer.get("content", {}):  # the shape of each event
            answer["content"]["text/event-stream"]["schema"] = _EVENT
        if int(status) >= 400:
            media, name = (
                ("application/json", "OpenAIError") if is_v1(path) else ("application/problem+json", "Problem")
            )
            answer["content"] = {media: {"schema": _one(name)}}
        elif (shape := _SHAPES.get(f"{method} {path}", _one("Job") if status == "202" else None)) is not None:
            content = answer.setdefault("content", {}).setdefault("application/json", {})
            if "$ref" not in content.get("schema", {}):
                content["schema"] = shape


def _hoisted(shape: Any) -> Any:
    """With references to where the shapes of the whole description lie."""
    if isinstance(shape, dict):
        return {
            key: value.replace("#/$defs/", _REF) if key == "$ref" else _hoisted(value) for key, value in shape.items()
        }
    return [_hoisted(item) for item in shape] if isinstance(shape, list) else shape
