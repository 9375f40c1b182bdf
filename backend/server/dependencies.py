"""What routes ask for, as annotated names, so that their signatures read as sentences.

All are coroutines: FastAPI would run plain functions in a pool of threads, which costs more than the rest of a request.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from backend.common.errors import Validation
from backend.manager import ModelManager
from backend.server.error_handlers import PROBLEM
from backend.server.sse import Streams

CALLER_LIMIT = 200


async def _manager(request: Request) -> ModelManager:
    manager: ModelManager = request.app.state.manager
    return manager


async def _caller(request: Request) -> str:
    """Who asks, for fairness: the header X-Client-Id, else the peer's address."""
    named = request.headers.get("x-client-id")
    return named[:CALLER_LIMIT] if named else request.client.host if request.client else "unknown"


async def _respond_async(request: Request) -> bool:
    wishes = ",".join(request.headers.getlist("prefer"))
    return "respond-async" in [wish.split(";")[0].strip().lower() for wish in wishes.split(",")]


async def _after(request: Request) -> int:
    """The id of the last event that the client has: Last-Event-ID, else `?after=`."""
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Validation(
            f"after: {text[:50]!r} is no event id.", "Send the id of the last event you have, a whole number."
        )
    return int(text)


async def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


OpenStreams = Annotated[Streams, Depends(_streams)]
Manager = Annotated[ModelManager, Depends(_manager)]
Caller = Annotated[str, Depends(_caller)]
RespondAsync = Annotated[bool, Depends(_respond_async)]
After = Annotated[int, Depends(_after)]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of the problems that a route can answer, beside those that every route can."""
    return {status: PROBLEM for status in (400, 403, 404, 413, 415, 421, 422, *statuses)}


def events_or(schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """The OpenAPI description of an answer that may be a stream of events."""
    return {"content": {"text/event-stream": {"schema": {"type": "string"}}}, **(schema or {})}
