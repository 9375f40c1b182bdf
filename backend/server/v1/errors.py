"""Errors under /v1 in OpenAI's shape: `{error: {message, type, code, param}}`, with 400 where /api answers 422."""

from __future__ import annotations

import re
from collections.abc import Mapping

from backend.common.errors import (
    BadRequest,
    ContextLengthExceeded,
    DeviceLost,
    DeviceNotReady,
    Interrupted,
    JobCancelled,
    ModelBroken,
    ModelIncompatible,
    ModelNotDownloaded,
    Quarantined,
    QueueFull,
    TouchstoneError,
    UnknownDevice,
    UnknownModel,
    UnsupportedParameter,
    Validation,
    WorkerCrashed,
    from_code,
)
from backend.common.types import JsonObject, Problem

CODES = {UnknownModel.code: "model_not_found"}
PARAMS = {
    **dict.fromkeys((UnknownModel.code, ModelNotDownloaded.code, ModelBroken.code, ModelIncompatible.code), "model"),
    **dict.fromkeys((UnknownDevice.code, DeviceNotReady.code, Quarantined.code), "device"),
}
# Errors that may be gone when a client repeats the request. Clients would also repeat each 409 and each 5xx.
RETRYABLE = frozenset(
    error.code for error in (BadRequest, DeviceLost, Interrupted, JobCancelled, QueueFull, WorkerCrashed)
)
_BAD_REQUESTS = (Validation.code, UnsupportedParameter.code)
MESSAGES = "/v1/messages"
PROMPTS = {
    **dict.fromkeys(("/v1/chat/completions", MESSAGES, f"{MESSAGES}/count_tokens"), "messages"),
    "/v1/completions": "prompt",
    **dict.fromkeys(("/v1/embeddings", "/v1/responses"), "input"),
}
_OPTIONS = "options."  # a job has options in an object of this name, OpenAI's body has them at the top level
ERROR: JsonObject = {
    "description": "An error in OpenAI's shape, with detail and remedy in its message",
    "content": {"application/json": {"schema": {"type": "object"}}},
}


def refusals(*statuses: int) -> dict[int | str, JsonObject]:
    """Return the OpenAPI description of the errors of a route, with those that every route can return."""
    return {status: ERROR for status in (400, 401, 403, 404, 413, 415, 421, 422, *statuses)}


def status_of(problem: Problem) -> int:
    """Return the HTTP status under /v1: 400 for a bad value or key, as other servers of this API answer."""
    return 400 if problem.code in _BAD_REQUESTS else problem.status


def renamed(error: TouchstoneError, names: Mapping[str, str]) -> TouchstoneError:
    """Return an error about a job's request with the keys that the caller sent. `names`: theirs by the job's."""
    fields = [str(each) for each in error.extra.get("fields") or ()]
    if not any(each in names for each in fields):
        return error
    detail = error.detail
    for each in fields:
        if each in names:
            own = re.escape(each.removeprefix(_OPTIONS))
            detail = re.sub(rf"(?<![\w.])({re.escape(_OPTIONS)})?{own}(?!\w)", names[each], detail)
    extra = {**error.extra, "fields": [names.get(each, each) for each in fields]}
    return from_code(error.code, detail, error.remedy, **extra)


def is_v1(path: str) -> bool:
    """Return whether a path belongs to the OpenAI-compatible API."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(problem: Problem, fields: list[str] | None = None, path: str = "") -> JsonObject:
    """Return the error body for a problem. `fields` are the wrong keys of the request, `path` is the requested path."""
    param = fields[0].removeprefix(_OPTIONS) if fields else PARAMS.get(problem.code)
    if problem.code == ContextLengthExceeded.code:
        param = PROMPTS.get(path)
    error = {
        "message": f"{problem.detail} {problem.remedy}".replace(_OPTIONS, ""),
        "type": _type_of(status_of(problem)),
        "code": CODES.get(problem.code, problem.code),
        "param": param,
    }
    if is_messages(path):
        return {"type": "error", "error": {**error, "type": _anthropic_type(status_of(problem))}}
    return {"error": error}


def is_messages(path: str) -> bool:
    """Return whether a path belongs to the API in Anthropic's shape."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def _anthropic_type(status: int) -> str:
    special = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
    special |= {429: "rate_limit_error"}
    return special.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _type_of(status: int) -> str:
    special = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return special.get(status, "server_error" if status >= 500 else "invalid_request_error")
