"""What proxies, browsers and programs expect of every response: HEAD, a charset, gzip, paths in any spelling, a prefix.

It is the outermost middleware, so it also completes the responses of the security checks.
"""

from __future__ import annotations

import asyncio
import gzip
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

GZIP_BYTES = 1024  # smaller bodies stay as they are
_GZIP_LEVEL = 5
_IN_THREAD_BYTES = 256 << 10  # larger bodies are compressed in a thread
_JSON = ("application/json", "application/problem+json")
_COMPRESSED = (*_JSON, "text/plain", "text/html", "text/css", "text/javascript")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# A raw quote occurs in JSON only outside of strings, so this is the key `url` and never text.
_ADDRESS = re.compile(rb'("url": ?")(/api/)')


class ResponseMiddleware:
    """ASGI middleware that accepts requests in more spellings and completes the responses."""

    def __init__(self, app: ASGIApp, prefix: str = "") -> None:
        """`prefix`: path of the public address. Optional, `X-Forwarded-Prefix` replaces it."""
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on in its normal form, and complete the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_head = scope["method"] == "HEAD"
        path = re.sub("/{2,}", "/", scope["path"])
        inner = {**scope, "path": path.rstrip("/") or "/"}
        if is_head:  # each route that answers GET answers HEAD
            inner |= {"method": "GET", "state": {**scope.get("state", {}), "asked_method": "HEAD"}}
        sender = _Sender(send, is_head, "gzip" in headers.get("accept-encoding", ""), self._prefix_of(headers))
        try:
            await self._app(inner, receive, sender.send)
        except Exception:
            if not sender.is_complete:
                raise

    def _prefix_of(self, headers: Headers) -> bytes:
        """Return the path that a proxy in front removed, empty if there is none."""
        sent = headers.get("x-forwarded-prefix", self._prefix).rstrip("/")
        return sent.encode() if _PREFIX.fullmatch(sent) else b""


class _HeadIsComplete(OSError):
    """Ends a route whose body is not sent, such as an event stream, as a closed connection would."""


class _Sender:
    """Sends one response. The start of one that may be compressed is held until the first part of its body."""

    def __init__(self, send: Send, is_head: bool, takes_gzip: bool, prefix: bytes) -> None:
        self._send = send
        self._is_head = is_head
        self._takes_gzip = takes_gzip
        self._prefix = prefix
        self._start: Message | None = None
        self._is_addressed = False
        self.is_complete = False

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            start = self._completed(message)
            if _media_type(start) in _COMPRESSED:
                self._start = start
            else:  # a stream's headers must not wait for its first event
                await self._send(start)
            return
        if message["type"] != "http.response.body" or self.is_complete:
            await self._send(message)
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        if self._is_addressed and body:
            changed = _ADDRESS.sub(rb"\1" + self._prefix + rb"\2", body)
            if self._start and len(changed) != len(body) and not has_more:
                MutableHeaders(scope=self._start)["Content-Length"] = str(len(changed))
            body = changed
        if self._start:
            start, self._start = self._start, None
            if not has_more and len(body) > GZIP_BYTES and self._may_compress(start):
                body = await _compress(start, body)
            await self._send(start)
        if self._is_head:
            self.is_complete = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            if has_more:
                raise _HeadIsComplete
            return
        await self._send({**message, "body": body})

    def _completed(self, start: Message) -> Message:
        headers = MutableHeaders(scope=start)
        media_type = headers.get("content-type", "")
        if media_type in _JSON:
            headers["Content-Type"] = f"{media_type}; charset=utf-8"
        if self._prefix and headers.get("location", "").startswith("/"):
            headers["Location"] = self._prefix.decode() + headers["location"]
        self._is_addressed = bool(self._prefix) and media_type.startswith((*_JSON, "text/event-stream"))
        return start

    def _may_compress(self, start: Message) -> bool:
        is_plain = start["status"] not in (204, 206, 304) and "content-encoding" not in Headers(raw=start["headers"])
        return self._takes_gzip and is_plain


def _media_type(start: Message) -> str:
    return Headers(raw=start["headers"]).get("content-type", "").partition(";")[0]


async def _compress(start: Message, body: bytes) -> bytes:
    """Return the body compressed, and set the headers of the response."""
    if len(body) > _IN_THREAD_BYTES:
        packed = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL, mtime=0)
    else:
        packed = gzip.compress(body, _GZIP_LEVEL, mtime=0)
    headers = MutableHeaders(scope=start)
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(packed))
    headers.add_vary_header("Accept-Encoding")
    return packed
