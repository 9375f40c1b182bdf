"""Refusals under /v1 in OpenAI's shape: `{error: {message, type, code, param}}`, with the statuses of everywhere."""

from __future__ import annotations

from typing import Any

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
from backend.common.types import Problem

CODES = {UnknownModel.code: "model_not_found"}
PARAMS = {
    **dict.fromkeys((UnknownModel.code, ModelNotDownloaded.code, ModelBroken.code, ModelIncompatible.code), "model"),
    **dict.fromkeys((UnknownDevice.code, DeviceNotReady.code, Quarantined.code), "device"),
}
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
_OPTIONS = "options."  # the caller named an option at the top; the job's request has it there
ERROR: dict[str, Any] = {
    "description": "A refusal in OpenAI's shape, with reason and remedy in its message",
    "content": {"application/json": {"schema": {"type": "object"}}},
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of the refusals of a route, beside those that every route can answer."""
    return {status: ERROR for status in (400, 401, 403, 404, 413, 415, 421, 422, *statuses)}


def is_v1(path: str) -> bool:
    """Whether a path belongs to OpenAI's API."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(problem: Problem, fields: list[str] | None = None, path: str = "") -> dict[str, Any]:
    """The body for a problem; `fields` are the places of the request that it is about, `path` what was asked."""
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
