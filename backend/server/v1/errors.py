"""Errors under /v1 in OpenAI's shape: `{error: {message, type, code, param}}`, with the same HTTP statuses as /api."""

from __future__ import annotations

from backend.common.errors import (
    ContextLengthExceeded,
    DeviceNotReady,
    ModelBroken,
    ModelIncompatible,
    ModelNotDownloaded,
    Quarantined,
    UnknownDevice,
    UnknownModel,
)
from backend.common.types import JsonObject, Problem

CODES = {UnknownModel.code: "model_not_found"}
PARAMS = {
    **dict.fromkeys((UnknownModel.code, ModelNotDownloaded.code, ModelBroken.code, ModelIncompatible.code), "model"),
    **dict.fromkeys((UnknownDevice.code, DeviceNotReady.code, Quarantined.code), "device"),
}
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
_OPTIONS = "options."  # a job has options in an object of this name, OpenAI's body has them at the top level
ERROR: JsonObject = {
    "description": "An error in OpenAI's shape, with detail and remedy in its message",
    "content": {"application/json": {"schema": {"type": "object"}}},
}


def refusals(*statuses: int) -> dict[int | str, JsonObject]:
    """Return the OpenAPI description of the errors of a route, with those that every route can return."""
    return {status: ERROR for status in (400, 401, 403, 404, 413, 415, 421, 422, *statuses)}


def is_v1(path: str) -> bool:
    """Return whether a path belongs to the OpenAI-compatible API."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(problem: Problem, fields: list[str] | None = None, path: str = "") -> JsonObject:
    """Return the error body for a problem. `fields` are the wrong keys of the request, `path` is the requested path."""
    param = fields[0].removeprefix(_OPTIONS) if fields else PARAMS.get(problem.code)
    if problem.code == ContextLengthExceeded.code:
        param = PROMPTS.get(path)
    return {
        "error": {
            "message": f"{problem.detail} {problem.remedy}".replace(_OPTIONS, ""),
            "type": _type_of(problem.status),
            "code": CODES.get(problem.code, problem.code),
            "param": param,
        }
    }


def _type_of(status: int) -> str:
    special = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return special.get(status, "server_error" if status >= 500 else "invalid_request_error")
