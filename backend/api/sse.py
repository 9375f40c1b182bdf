"""Server-sent events: a comment at once and every 15 s, ids to resume from, no buffering on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse

from backend.types import Event

PING_S = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b": \n\n"
_LINE_ENDS = "\x85\u2028\u2029"  # not in this format, but many clients' line readers end a line there


def stream(
    events: AsyncIterator[Event], headers: dict[str, str], on_leave: Callable[[], None] | None = None
) -> StreamingResponse:
    """The events as an SSE answer; `on_leave` is called if the client goes before the last one."""
    return StreamingResponse(_bytes(events, on_leave), media_type="text/event-stream", headers={**HEADERS, **headers})


async def _bytes(events: AsyncIterator[Event], on_leave: Callable[[], None] | None) -> AsyncIterator[bytes]:
    whole = False
    try:
        yield _COMMENT
        async for event in _with_pings(events):
            yield _encoded(event) if event else _COMMENT
        whole = True
    finally:
        if on_leave and not whole:
            on_leave()


async def _with_pings(events: AsyncIterator[Event]) -> AsyncIterator[Event | None]:
    """The events, and None whenever there was none for a while."""
    waiting: asyncio.Future[Event] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({waiting}, timeout=PING_S)
            if not done:
                yield None
                continue
            try:
                event = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield event
    finally:
        if waiting and not waiting.done():
            waiting.cancel()


def _encoded(event: Event) -> bytes:
    data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        data = data.replace(character, f"\\u{ord(character):04x}")
    return f"id: {event.id}\nevent: {event.event}\ndata: {data}\n\n".encode()
