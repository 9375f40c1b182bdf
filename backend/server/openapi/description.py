"""The description at /openapi.json: FastAPI's, completed with the errors and response schemas of every route.

A route without a response model returns a Job if its status is 202, otherwise the schema in `_SHAPES`. A test sends
requests to every route of a real server and validates the responses against this description.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from backend.common.types import JsonObject
from backend.server.openapi.shapes import shapes
from backend.server.v1.errors import is_v1

_EVERY = {
    400: "Malformed HTTP or JSON",
    401: "Authentication required",
    403: "Pages of other origins may not use this server",
    421: "The Host header is not a name of this server",
    503: "The server is stopping",
}
_WITH_BODY = {
    413: "The body is too large",
    415: "The body has an unsupported media type",
    422: "The request is not valid",
    507: "The disk is full",
}
_REF = "#/components/schemas/"
_TEXT, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def _ref(name: str) -> JsonObject:
    return {"$ref": _REF + name}


def _list_of(name: str) -> JsonObject:
    return {"type": "array", "items": _ref(name)}


def _object(optional: JsonObject | None = None, /, **required: Any) -> JsonObject:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": sorted(required)}


_OPTIONAL_TEXT = {"type": ["string", "null"]}
_HEALTH_PROBLEM = _object(subject=_TEXT, code=_TEXT, detail=_OPTIONAL_TEXT, remedy=_OPTIONAL_TEXT)
_DEVICES = _object(
    devices=_list_of("Device"),
    hardware=_list_of("Hardware"),
    missing=_list_of("MissingDevice"),
    default=_OPTIONAL_TEXT,
    default_reason=_TEXT,
    probing={"type": "boolean"},
    loaded={"type": "array", "items": {"type": "object"}},
)
_MODEL_CARD = _object(id=_TEXT, object={"const": "model"}, created=_INTEGER, owned_by=_TEXT)
_COMPLETION = _object(
    id=_TEXT, object=_TEXT, created=_INTEGER, model=_TEXT, choices={"type": "array"}, usage={"type": "object"}
)
_OPTIONAL_INTEGER = {"type": ["integer", "null"]}
_FIT = _object(device=_TEXT, fits={"enum": ["yes", "partly", "no"]}, reason=_TEXT)
_RECOMMENDED = _object(
    model=_TEXT,
    name=_TEXT,
    state=_OPTIONAL_TEXT,
    bytes=_OPTIONAL_INTEGER,
    download_s={"type": ["number", "null"]},
    licence=_OPTIONAL_TEXT,
    memory_class=_TEXT,
    reason=_TEXT,
    fits={"anyOf": [_FIT, {"type": "null"}]},
    offer={"type": "boolean"},
)
_FOUND_FILE = _object(
    name=_TEXT,
    source=_TEXT,
    bytes=_OPTIONAL_INTEGER,
    parts=_INTEGER,
    quantization=_OPTIONAL_TEXT,
    fits={"type": "array", "items": _FIT},
)
_FOUND = _object(
    source=_TEXT,
    name=_TEXT,
    author=_TEXT,
    downloads=_OPTIONAL_INTEGER,
    likes=_OPTIONAL_INTEGER,
    licence=_OPTIONAL_TEXT,
    updated_at=_OPTIONAL_TEXT,
    gated={"type": "boolean"},
    page=_TEXT,
    reason=_OPTIONAL_TEXT,
    files={"type": "array", "items": _FOUND_FILE},
)
_RESPONSE = _object(
    id=_TEXT, object={"const": "response"}, created_at=_INTEGER, status=_TEXT, model=_TEXT, output={"type": "array"}
)
_MESSAGE = _object(
    id=_TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_TEXT,
    content={"type": "array"},
    stop_reason=_OPTIONAL_TEXT,
    usage={"type": "object"},
)
_SHAPES = {
    "get /api/health": _object(
        {"problems": {"type": "array", "items": _HEALTH_PROBLEM}},
        status={"enum": ["starting", "ok", "degraded"]},
        version=_TEXT,
        uptime_s=_NUMBER,
        devices={"type": "object", "additionalProperties": _INTEGER},
        jobs=_object(queued=_INTEGER, running=_INTEGER),
    ),
    "get /api/devices": _DEVICES,
    "post /api/devices/refresh": _DEVICES,
    "post /api/devices/{device_id}/release": _DEVICES,
    "get /api/models": _object(models=_list_of("Model"), recommended={"anyOf": [_RECOMMENDED, {"type": "null"}]}),
    "get /api/models/search": _object(results={"type": "array", "items": _FOUND}),
    "get /api/models/importable": _ref("Importable"),
    "get /api/runtimes": _object(runtimes=_list_of("Runtime"), best=_OPTIONAL_TEXT, best_reason=_TEXT),
    "post /api/runtimes/{name}/rollback": _ref("Runtime"),
    "get /api/jobs": _object(jobs=_list_of("Job"), next=_OPTIONAL_TEXT),
    "get /api/bench": _object(measurements={"type": "array", "items": {"type": "object"}}),
    "get /v1/models": _object(object={"const": "list"}, data={"type": "array", "items": _MODEL_CARD}),
    "get /v1/models/{model_id}": _MODEL_CARD,
    "post /v1/chat/completions": _COMPLETION,
    "post /v1/completions": _COMPLETION,
    "post /v1/responses": _RESPONSE,
    "get /v1/responses/{response_id}": _RESPONSE,
    "delete /v1/responses/{response_id}": _object(id=_TEXT, object={"const": "response"}, deleted={"type": "boolean"}),
    "post /v1/messages": _MESSAGE,
    "post /v1/messages/count_tokens": _object(input_tokens=_INTEGER),
    "post /v1/embeddings": _object(object={"const": "list"}, data={"type": "array"}, usage={"type": "object"}),
}
_EVENT = _object({"id": _TEXT, "event": _TEXT}, data=_TEXT)
_OPENAI_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, code=_TEXT, param=_OPTIONAL_TEXT))


def install(app: FastAPI) -> None:
    """Complete the OpenAPI description of the application, once, when it is first requested."""
    describe = app.openapi

    def describe_completely() -> JsonObject:
        if app.openapi_schema is None:
            _complete(describe())
        return describe()

    app.openapi = describe_completely  # type: ignore[method-assign]


def _complete(api: JsonObject) -> None:
    components = api["components"]["schemas"]
    for name, shape in shapes().items():
        if not name.startswith("event: "):
            inner = shape.pop("$defs", {})
            components |= {key: _with_component_refs(value) for key, value in {**inner, name: shape}.items()}
    components["OpenAIError"] = _OPENAI_ERROR
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            _complete_route(path, method, route)


def _complete_route(path: str, method: str, route: JsonObject) -> None:
    responses = route["responses"]
    errors = {**_EVERY, **(_WITH_BODY if method in ("post", "put", "patch") else {})}
    for status, description in errors.items():
        responses.setdefault(str(status), {"description": description})
    for status, response in responses.items():
        if "text/event-stream" in response.get("content", {}):  # the schema of each event
            response["content"]["text/event-stream"]["schema"] = _EVENT
        if int(status) >= 400:
            media, name = (
                ("application/json", "OpenAIError") if is_v1(path) else ("application/problem+json", "Problem")
            )
            response["content"] = {media: {"schema": _ref(name)}}
        elif (shape := _SHAPES.get(f"{method} {path}", _ref("Job") if status == "202" else None)) is not None:
            content = response.setdefault("content", {}).setdefault("application/json", {})
            if "$ref" not in content.get("schema", {}):
                content["schema"] = shape


def _with_component_refs(shape: Any) -> Any:
    """Return a schema with its references changed from `$defs` to the components of the description."""
    if isinstance(shape, dict):
        return {
            key: value.replace("#/$defs/", _REF) if key == "$ref" else _with_component_refs(value)
            for key, value in shape.items()
        }
    return [_with_component_refs(item) for item in shape] if isinstance(shape, list) else shape
