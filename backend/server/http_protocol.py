"""Limits on HTTP connections: their number, a timeout for request headers, and error responses as problem+json.

Without them idle or slow clients could block all others.
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
from backend.server.security_middleware import RESPONSE_HEADERS, request_timeout

log = logging.getLogger(__name__)


class LimitedHttpProtocol(H11Protocol):
    """One connection, with a timeout while it waits for the first request, or for the rest of a request's headers."""

    def __init__(self, settings: Server, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._limit = settings.connection_limit
        self._header_timeout_s = settings.request_s
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection. If too many are open, log that and close it."""
        super().connection_made(transport)
        if len(self.connections) > self._limit:
            log.warning("connection closed: too many are open", extra={"limit": self._limit})
            transport.abort()
            return
        self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once all headers of a request were received."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timeout()
        elif self._timeout is None:
            self._start_timeout()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP with a problem, and close the connection."""
        self._refuse(BadRequest("Malformed HTTP request.", "Send HTTP/1.1; see /docs."))

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(self._header_timeout_s, self._on_timeout)

    def _stop_timeout(self) -> None:
        if self._timeout:
            self._timeout.cancel()
            self._timeout = None

    def _on_timeout(self) -> None:
        self._timeout = None
        if self.conn.trailing_data[0]:
            self._refuse(request_timeout(self._header_timeout_s))
        else:  # no request was received: a response would be taken for that of the next request
            self.transport.close()

    def _refuse(self, error: BadRequest) -> None:
        answer = respond(error, {**RESPONSE_HEADERS, "Connection": "close"})
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=answer.status_code, headers=answer.raw_headers),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle:  # a running route whose body is malformed cannot respond any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
