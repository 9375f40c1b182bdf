"""Turns every error into HTTP: problem+json with status, code, reason and remedy; under /v1 in OpenAI's shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from backend.common import errors
from backend.common.config.strict_model import to_validation_error
from backend.common.errors import TouchstoneError
from backend.common.types import Problem
from backend.server.v1.errors import error_body, is_v1

MEDIA_TYPE = "application/problem+json"
PROBLEM: dict[str, Any] = {
    "description": "A problem, with reason and remedy",
    "content": {MEDIA_TYPE: {"schema": {"type": "object"}}},
}


class ProblemResponse(JSONResponse):
    """A problem document."""

    media_type = MEDIA_TYPE


def respond(error: TouchstoneError, headers: dict[str, str] | None = None, *, path: str = "", **extra: Any) -> Response:
    """The answer for an error, in the shape of the `path` that was asked."""
    headers = dict(headers or {})
    if (seconds := error.extra.get("retry_after_s")) is not None:
        headers["Retry-After"] = str(int(seconds))
    if isinstance(error, errors.Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    problem = error.problem()
    if is_v1(path):
        return JSONResponse(error_body(problem, error.extra.get("fields"), path), problem.status, headers)
    return respond_problem(problem, headers, **error.extra, **extra)


def respond_problem(problem: Problem, headers: dict[str, str] | None = None, **extra: Any) -> Response:
    """The answer for a problem document, such as the one a job ended with."""
    return ProblemResponse({**extra, **asdict(problem)}, problem.status, headers=headers)


def install(app: FastAPI) -> None:
    """Makes every foreseen failure of a route come out through this file; `guard.py` answers for the others."""

    @app.exception_handler(TouchstoneError)
    async def _ours(request: Request, error: TouchstoneError) -> Response:
        return respond(error, path=request.url.path)

    @app.exception_handler(RequestValidationError)
    async def _shape(request: Request, error: RequestValidationError) -> Response:
        return respond(_of_shape(request, error), path=request.url.path)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = _allowed(request)
        return respond(_of_http(request, error), headers, path=request.url.path)


def _allowed(request: Request) -> str:
    """All methods that the address has, of which Starlette names those of the first route alone."""
    routes = request.app.routes
    scopes = {method: {**request.scope, "method": method} for method in ("GET", "HEAD", "POST", "PUT", "DELETE")}
    return ", ".join(
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    )


def _of_shape(request: Request, error: RequestValidationError) -> TouchstoneError:
    found = error.errors()
    if any(
        item["type"] == "json_invalid" or (item["loc"] == ("body",) and item["type"] == "missing") for item in found
    ):
        return bad_json()
    route = request.scope.get("route")
    field = getattr(route, "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    kinds = (annotation, *get_args(annotation))  # a body that may be left out is one of two
    refusal = to_validation_error(
        found, next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), {})
    )
    if is_v1(request.url.path) and any(item["type"] == "extra_forbidden" for item in found):
        return errors.UnsupportedParameter(refusal.detail, refusal.remedy, **refusal.extra)
    return refusal


def _of_http(request: Request, error: HTTPException) -> TouchstoneError:
    path = request.url.path[:200]
    if error.status_code == 404:
        return errors.NotFound(f"There is nothing at {path!r}.", "See /docs for what there is.")
    if error.status_code == 405:
        return errors.MethodNotAllowed(f"{request.method} is not allowed at {path!r}.", "See /docs for what is.")
    if error.status_code == 400:
        return bad_json()
    return errors.Internal(str(error.detail), "Try again; if it repeats, report the server's log.")


def bad_json() -> errors.BadJson:
    """The refusal for a body that is empty, not UTF-8 or not JSON."""
    return errors.BadJson(
        "The body is not a JSON text in UTF-8.", "Send a JSON object with Content-Type: application/json."
    )
