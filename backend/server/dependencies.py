"""The dependencies of routes, as annotated types.

All are coroutines: FastAPI would run plain functions in a thread pool, which costs more than the rest of a request.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from backend.common.errors import Validation
from backend.common.types import JsonObject
from backend.manager import ModelManager
from backend.server.error_handlers import PROBLEM
from backend.server.sse import Streams

CALLER_LIMIT = 200


async def _manager(request: Request) -> ModelManager:
    manager: ModelManager = request.app.state.manager
    return manager


async def _caller(request: Request) -> str:
    """Return the caller, for fair queueing: the header X-Client-Id, by default the peer's address."""
    named = request.headers.get("x-client-id")
    return named[:CALLER_LIMIT] if named else request.client.host if request.client else "unknown"


async def _respond_async(request: Request) -> bool:
    preferences = ",".join(request.headers.getlist("prefer"))
    return "respond-async" in [preference.split(";")[0].strip().lower() for preference in preferences.split(",")]


async def _after(request: Request) -> int:
    """Return the id of the last event that the client received: Last-Event-ID, else `?after=`; default 0."""
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Validation(
            f"after: {text[:50]!r} is not an event id.", "Send the id of the last event you received, an integer."
        )
    return int(text)


async def _idempotency_key(
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> str | None:
    return idempotency_key


async def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


OpenStreams = Annotated[Streams, Depends(_streams)]
Manager = Annotated[ModelManager, Depends(_manager)]
Caller = Annotated[str, Depends(_caller)]
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]
RespondAsync = Annotated[bool, Depends(_respond_async)]
After = Annotated[int, Depends(_after)]


def problems(*statuses: int) -> dict[int | str, JsonObject]:
    """Return the OpenAPI description of the problems that a route can return, with those that every route can."""
    return {status: PROBLEM for status in (400, 403, 404, 413, 415, 421, 422, *statuses)}


def events_or(schema: JsonObject | None = None) -> JsonObject:
    """Return the OpenAPI description of a response that may be an event stream. `schema` describes the other form."""
    return {"content": {"text/event-stream": {"schema": {"type": "string"}}}, **(schema or {})}
