"""Server-sent events: a comment at once and every 15 s, ids to resume from, no buffering on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backend.errors import QueueFull
from backend.types import Event

PING_S = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b": \n\n"
_LINE_ENDS = "\x85\u2028\u2029"  # not in this format, but many clients' line readers end a line there


class Streams:
    """Counts the open streams, so that followers cannot use the server up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        """Refuses one too many. Raises QueueFull."""
        if self.open >= self._limit:
            detail = f"{self.open} event streams are open, which is the limit."
            raise QueueFull(detail, "Close some, or raise server.follower_limit.", retry_after_s=5)


class EventStream(StreamingResponse):
    """Events as an SSE answer; `on_leave` is called if the client goes before the last one, or before the first.

    The caller asks `streams.check()` before anything is done that a refusal could not undo.
    """

    def __init__(
        self,
        streams: Streams,
        events: AsyncIterator[Event],
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        self._streams = streams
        self._on_leave = on_leave
        self._whole = False
        super().__init__(self._bytes(events), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends, and notes the end, however it comes."""
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1
            if self._on_leave and not self._whole:
                self._on_leave()

    async def _bytes(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        yield _COMMENT
        async for event in _with_pings(events):
            yield _encoded(event) if event else _COMMENT
        self._whole = True


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
