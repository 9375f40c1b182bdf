"""Server-sent events: a comment at once and every 15 s, ids to resume from, no buffering on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backend.errors import QueueFull
from backend.types import Event

PING_S = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b": \n\n"
Item = TypeVar("Item")
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


class ServerSent(StreamingResponse):
    """Pieces of text as an SSE answer, with comments in pauses; `on_leave` is called if the client goes before the end.

    The caller asks `streams.check()` before anything is done that a refusal could not undo.
    """

    def __init__(
        self,
        streams: Streams,
        pieces: AsyncIterator[str],
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        self._streams = streams
        self._on_leave = on_leave
        self._whole = False
        super().__init__(self._bytes(pieces), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends, and notes the end, however it comes."""
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1
            if self._on_leave and not self._whole:
                self._on_leave()

    async def _bytes(self, pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
        async for piece in _with_pings(pieces):
            yield _COMMENT if piece is None else piece.encode()
        self._whole = True


class EventStream(ServerSent):
    """Events as an SSE answer, after a comment that comes at once."""

    def __init__(
        self,
        streams: Streams,
        events: AsyncIterator[Event],
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(streams, _pieces(events), headers, on_leave)


async def _pieces(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    yield _COMMENT.decode()
    async for event in events:
        yield f"id: {event.id}\nevent: {event.event}\n{data_line(event.data)}"


def data_line(data: Any) -> str:
    """JSON as the data of an event, with the blank line that ends it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n"


async def _with_pings(items: AsyncIterator[Item]) -> AsyncIterator[Item | None]:
    """The items, and None whenever there was none for a while."""
    waiting: asyncio.Future[Item] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(items))
            done, _ = await asyncio.wait({waiting}, timeout=PING_S)
            if not done:
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield item
    finally:
        if waiting and not waiting.done():
            waiting.cancel()
