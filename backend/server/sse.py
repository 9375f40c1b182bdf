"""Server-sent events: a comment at once and every 15 s, ids to resume from, no buffering on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from backend.common.errors import QueueFull
from backend.common.types import Event

PING_S = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b": \n\n"
RECENT = 256
_RECENT: dict[int, tuple[Event, bytes]] = {}  # by identity, which the entry itself keeps from being another's
Piece = str | bytes
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
        pieces: AsyncIterator[Piece],
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
        line = _Line(send)
        pings = asyncio.create_task(line.ping())
        try:
            await super().__call__(scope, receive, line.send)
        finally:
            pings.cancel()
            self._streams.open -= 1
            if self._on_leave and not self._whole:
                self._on_leave()

    async def _bytes(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            yield piece.encode() if isinstance(piece, str) else piece
        self._whole = True


class _Line:
    """What is sent to one client. A task of its own fills the pauses: a wait with a limit for each event costs more."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sent_at = asyncio.get_running_loop().time()
        self._open = False

    async def send(self, message: Message) -> None:
        """Sends, and takes down when."""
        self._open = message["type"] == "http.response.start" or message.get("more_body", False)
        self._sent_at = asyncio.get_running_loop().time()
        await self._send(message)

    async def ping(self) -> None:
        """Sends a comment whenever nothing else was sent for a while."""
        while True:
            silent_s = asyncio.get_running_loop().time() - self._sent_at
            if silent_s < PING_S:
                await asyncio.sleep(PING_S - silent_s)
            elif self._open:
                await self.send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
            else:
                await asyncio.sleep(PING_S)


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


async def _pieces(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield _COMMENT
    async for event in events:
        yield _encoded(event)


def _encoded(event: Event) -> bytes:
    """The event as it is sent, made once for all who follow: they read the same ones within moments."""
    known = _RECENT.get(id(event))
    if known is None:
        text = f"id: {event.id}\nevent: {event.event}\n{data_line(event.data)}"
        known = _RECENT[id(event)] = (event, text.encode())
        if len(_RECENT) > RECENT:
            del _RECENT[next(iter(_RECENT))]
    return known[1]


def data_line(data: Any) -> str:
    """JSON as the data of an event, with the blank line that ends it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n"
