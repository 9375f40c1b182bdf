"""Server-sent events: a comment at once and every 15 s, ids to resume from, no buffering by proxies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from backend.common.clean_text import json_safe
from backend.common.errors import QueueFull
from backend.common.types import Event

PING_S = 15.0
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_COMMENT = b": \n\n"
RECENT = 256
_RECENT: dict[int, tuple[Event, bytes]] = {}  # by id(); each entry keeps its event, so that the id stays unique
Piece = str | bytes
_LINE_ENDS = "\x85\u2028\u2029"  # not line ends in SSE, but the line readers of many clients split there


class Streams:
    """Counts open streams, so that followers cannot exhaust the server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        """Check that one more stream may open. Raises QueueFull."""
        if self.open >= self._limit:
            detail = f"{self.open} event streams are open, which is the limit."
            raise QueueFull(detail, "Close some, or raise server.follower_limit.", retry_after_s=5)


class ServerSent(StreamingResponse):
    """An SSE response of pieces of text, with comments in pauses.

    `on_leave` is called if the client disconnects before the end. A comment follows each pause of
    `ping_s`. Call `streams.check()` before anything that a refusal could not undo.
    """

    def __init__(
        self,
        streams: Streams,
        pieces: AsyncIterator[Piece],
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], None] | None = None,
        ping_s: float | None = None,
    ) -> None:
        self._streams = streams
        self._on_leave = on_leave
        self._ping_s = PING_S if ping_s is None else ping_s
        self._is_complete = False
        super().__init__(self._bytes(pieces), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response and count the stream as open until its end."""
        self._streams.open += 1
        connection = _KeepAliveSender(send, self._ping_s)
        pings = asyncio.create_task(connection.ping())
        try:
            await super().__call__(scope, receive, connection.send)
        finally:
            pings.cancel()
            self._streams.open -= 1
            if self._on_leave and not self._is_complete:
                self._on_leave()

    async def _bytes(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            yield piece.encode() if isinstance(piece, str) else piece
        self._is_complete = True


class _KeepAliveSender:
    """Sends to one client, with comments in pauses. One task for them costs less than a timeout for each event."""

    def __init__(self, send: Send, ping_s: float) -> None:
        self._send = send
        self._ping_s = ping_s
        self._sent_at = asyncio.get_running_loop().time()
        self._open = False

    async def send(self, message: Message) -> None:
        """Send a message and remember the time."""
        self._open = message["type"] == "http.response.start" or message.get("more_body", False)
        self._sent_at = asyncio.get_running_loop().time()
        await self._send(message)

    async def ping(self) -> None:
        """Send a comment after each pause of `ping_s`."""
        while True:
            idle_s = asyncio.get_running_loop().time() - self._sent_at
            if idle_s < self._ping_s:
                await asyncio.sleep(self._ping_s - idle_s)
            elif self._open:
                await self.send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
            else:
                await asyncio.sleep(self._ping_s)


class EventStream(ServerSent):
    """An SSE response of events, after a comment that is sent at once."""

    def __init__(
        self,
        streams: Streams,
        events: AsyncIterator[Event],
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(streams, _encode_events(events), headers, on_leave)


async def _encode_events(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield _COMMENT
    async for event in events:
        yield _encode(event)


def _encode(event: Event) -> bytes:
    """Return an event as SSE. The last results are cached: all followers of a job read the same events."""
    cached = _RECENT.get(id(event))
    if cached is None:
        text = f"id: {event.id}\nevent: {event.event}\n{data_line(event.data)}"
        cached = _RECENT[id(event)] = (event, text.encode())
        if len(_RECENT) > RECENT:
            del _RECENT[next(iter(_RECENT))]
    return cached[1]


def named_event(name: str, data: Any) -> str:
    """Return JSON as an event with a name and without an id."""
    return f"event: {name}\n{data_line(data)}"


def data_line(data: Any) -> str:
    """Return JSON as the `data` of an event, with the blank line that ends the event."""
    try:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except ValueError:  # a lone surrogate or NaN
        text = json.dumps(json_safe(data), ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n"
