"""Converts every error to HTTP: problem+json with status, code, detail and remedy; under /v1 in OpenAI's shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from backend.common import errors
from backend.common.config.strict_model import to_validation_error
from backend.common.errors import TouchstoneError
from backend.common.types import JsonObject, Problem
from backend.server.json_response import JsonResponse
from backend.server.v1.errors import RETRYABLE, error_body, is_v1, status_of

MEDIA_TYPE = "application/problem+json"
PROBLEM: JsonObject = {
    "description": "A problem, with detail and remedy",
    "content": {MEDIA_TYPE: {"schema": {"type": "object"}}},
}


class ProblemResponse(JsonResponse):
    """A problem document (RFC 9457)."""

    media_type = MEDIA_TYPE


def respond(error: TouchstoneError, headers: dict[str, str] | None = None, *, path: str = "", **extra: Any) -> Response:
    """Return the response for an error, in the shape of the requested `path`. `extra` adds members to the problem."""
    headers = dict(headers or {})
    if (seconds := error.extra.get("retry_after_s")) is not None:
        headers["Retry-After"] = str(int(seconds))
    if isinstance(error, errors.Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    problem = error.problem()
    if is_v1(path):
        if problem.code not in RETRYABLE:
            headers["x-should-retry"] = "false"
        return JsonResponse(error_body(problem, error.extra.get("fields"), path), status_of(problem), headers)
    return respond_problem(problem, headers, **error.extra, **extra)


def respond_problem(problem: Problem, headers: dict[str, str] | None = None, **extra: Any) -> Response:
    """Return the response for a problem, such as the one that a job failed with."""
    return ProblemResponse({**extra, **asdict(problem)}, problem.status, headers=headers)


def install(app: FastAPI) -> None:
    """Register the handlers of expected errors. The security middleware handles unexpected exceptions."""

    @app.exception_handler(TouchstoneError)
    async def _on_touchstone_error(request: Request, error: TouchstoneError) -> Response:
        return respond(error, path=request.url.path)

    @app.exception_handler(RequestValidationError)
    async def _on_invalid_body(request: Request, error: RequestValidationError) -> Response:
        return respond(_from_validation(request, error), path=request.url.path)

    @app.exception_handler(HTTPException)
    async def _on_http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = _allowed(request)
        return respond(_from_http(request, error), headers, path=request.url.path)


def _allowed(request: Request) -> str:
    """Return all methods of a path. Starlette itself lists only those of the first route."""
    routes = request.app.routes
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
    scopes = {method: {**request.scope, "method": method} for method in methods}
    allowed = [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    return ", ".join(["GET", "HEAD", *allowed[1:]] if "GET" in allowed else allowed)


def _from_validation(request: Request, error: RequestValidationError) -> TouchstoneError:
    failures = error.errors()
    if any(
        item["type"] == "json_invalid" or (item["loc"] == ("body",) and item["type"] == "missing") for item in failures
    ):
        return bad_json()
    route = request.scope.get("route")
    field = getattr(route, "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    kinds = (annotation, *get_args(annotation))  # an optional body is a union
    refusal = to_validation_error(
        failures, next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), {})
    )
    if is_v1(request.url.path) and any(item["type"] == "extra_forbidden" for item in failures):
        return errors.UnsupportedParameter(refusal.detail, refusal.remedy, **refusal.extra)
    return refusal


def _from_http(request: Request, error: HTTPException) -> TouchstoneError:
    path = request.url.path[:200]
    if error.status_code == 404:
        return errors.NotFound(f"{path!r} does not exist.", "See /docs for the list of routes.")
    if error.status_code == 405:
        method = getattr(request.state, "asked_method", request.method)
        return errors.MethodNotAllowed(f"{method} is not allowed at {path!r}.", "See /docs for the routes.")
    if error.status_code == 400:
        return bad_json()
    return errors.Internal(str(error.detail), "Retry. If it happens again, report the server's log.")


def bad_json() -> errors.BadJson:
    """Return the error for a body that is empty, not UTF-8 or not JSON."""
    return errors.BadJson(
        "The body is not valid JSON in UTF-8.", "Send a JSON object with Content-Type: application/json."
    )
