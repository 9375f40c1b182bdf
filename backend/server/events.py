"""GET /api/events: one stream for all jobs, devices and runtimes. Browsers allow only six connections per host."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.server.dependencies import After, Manager, OpenStreams, events_or, problems
from backend.server.sse import EventStream

router = APIRouter(prefix="/api", tags=["events"])


@router.get("/events", response_class=Response, responses={200: events_or(), **problems(429)})
async def follow_all(request: Request, manager: Manager, streams: OpenStreams, after: After) -> Response:
    """Stream the events of all jobs except `token`, and `device` and `runtime` events.

    Resumes after `Last-Event-ID` or `?after=`. By default only new events are sent.
    """
    streams.check()
    resumes = "last-event-id" in request.headers or "after" in request.query_params
    return EventStream(streams, manager.event_bus.follow(after if resumes else None))
