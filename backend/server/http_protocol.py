"""Connections of the HTTP server: how many there may be, how long a request may take to arrive, and answers in our form
to what is no HTTP at all. Otherwise idle or trickling clients could keep everyone else out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from backend.common.config.settings.schema import Server
from backend.common.errors import BadRequest
from backend.server.error_handlers import respond
from backend.server.security_middleware import ANSWER_HEADERS, late

log = logging.getLogger(__name__)


class LimitedHttpProtocol(H11Protocol):
    """One connection. Its clock runs while the head of a request is awaited that has begun, or the first one."""

    def __init__(self, settings: Server, **made_by_uvicorn: Any) -> None:
        super().__init__(**made_by_uvicorn)
        self._limit = settings.connection_limit
        self._head_s = settings.request_s
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the connection, or drops it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limit:
            log.warning("a connection was dropped: too many are open", extra={"limit": self._limit})
            transport.abort()
            return
        self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Stops the clock once the head of a request is whole."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._clock is None:
            self._wind()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP with a problem, and closes."""
        self._refuse(BadRequest("This is no HTTP request that the server understands.", "Send HTTP/1.1; see /docs."))

    def _wind(self) -> None:
        self._clock = self.loop.call_later(self._head_s, self._late)

    def _stop(self) -> None:
        if self._clock:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        self._clock = None
        if self.conn.trailing_data[0]:
            self._refuse(late(self._head_s))
        else:  # nothing was asked, so an answer would be taken for that of the next request
            self.transport.close()

    def _refuse(self, error: BadRequest) -> None:
        answer = respond(error, {**ANSWER_HEADERS, "Connection": "close"})
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=answer.status_code, headers=answer.raw_headers),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle:  # a route at work on the request, whose body turned out to be none, has nobody to answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
