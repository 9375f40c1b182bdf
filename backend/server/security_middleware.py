"""Security checks before every route: Host, Origin, token, JSON bodies of limited size, and response headers.

Every page that the user's browser opens can send requests to a local service. Without these checks such a page could
use it, by a form or by DNS rebinding.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.common import errors
from backend.common.config.settings.schema import Server
from backend.common.errors import TouchstoneError
from backend.server.auth_token import Token
from backend.server.error_handlers import bad_json, respond
from backend.server.origin_policy import OriginPolicy, cors_headers, preflight_response

log = logging.getLogger(__name__)
COOKIE = "touchstone_session"
PUBLIC_PATHS = ("/api/session", "/api/health")
RESPONSE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
KEY_HEADERS = ("x-api-key", "api-key")  # in which clients of Anthropic's and Azure's APIs send the token
UPLOADS = "/api/files/"  # bodies that are not JSON; their route reads them with its own limits
_WITH_BODY = ("POST", "PUT", "PATCH")
LARGE_BYTES, LARGE_AT_ONCE = 256 << 10, 16  # larger bodies are limited in number: together they could fill memory


class SecurityMiddleware:
    """ASGI middleware that checks each request, reads its JSON body, and adds the response headers."""

    def __init__(self, app: ASGIApp, settings: Server, token: Token, static: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._limit_bytes = settings.body_limit_bytes
        self._request_timeout_s = settings.request_s
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._static = static
        self._origins = OriginPolicy(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with its body read. Log an unhandled exception."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sender = _Sender(send)
        try:
            origin = self._origins.check(scope["method"], scope["path"], headers)
            if origin is not None:
                sender.headers |= cors_headers(origin)
                if scope["method"] == "OPTIONS" and (preflight := preflight_response(headers)):
                    await preflight(scope, receive, sender.send)
                    return
            scope.setdefault("state", {})["known"] = self._check_token(scope["path"], headers)
            if scope["method"] in _WITH_BODY and not f"{scope['path']}/".startswith(UPLOADS):
                receive = await self._read_with_timeout(headers, receive)
        except TouchstoneError as error:
            unread = isinstance(error, errors.BadRequest | errors.PayloadTooLarge)
            closing = {"Connection": "close"} if unread else None
            await respond(error, closing, path=scope["path"])(scope, receive, sender.send)
            return
        await self._run(scope, receive, sender)

    async def _run(self, scope: Scope, receive: Receive, sender: _Sender) -> None:
        """Run the application. Logs an unhandled exception and responds to it."""
        try:
            await self._app(scope, receive, sender.send)
        except Exception as error:
            if sender.has_started:
                raise  # part of the response was sent: only closing the connection shows that it is incomplete
            log.error("unhandled exception in a request", exc_info=error, extra={"path": scope["path"]})
            detail = "Unexpected internal error. The server's log has the details."
            failure = errors.Internal(detail, "Retry. If it happens again, report the log.")
            await respond(failure, path=scope["path"])(scope, receive, sender.send)

    def _check_token(self, path: str, headers: Headers) -> bool:
        """Return whether the caller is authenticated. Raises Unauthorized if the path requires it."""
        token = self._token.value
        if token is None:
            return True
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        keys = [sent if scheme.lower() == "bearer" else "", *(headers.get(name, "") for name in KEY_HEADERS)]
        if any(is_equal(key.strip(), token) for key in keys):
            return True
        if is_equal(_cookie(headers), session_cookie(token)):
            return True
        if path in PUBLIC_PATHS or path in self._static:
            return False
        raise errors.Unauthorized(
            "Authentication required.",
            "Send the server's token (Authorization: Bearer TOKEN), or sign in on the page.",
        )

    async def _read_with_timeout(self, headers: Headers, receive: Receive) -> Receive:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._read(headers, receive)
        except TimeoutError:
            raise request_timeout(self._request_timeout_s) from None

    async def _read(self, headers: Headers, receive: Receive) -> Receive:
        """Read the complete body. Returns a `receive` that replays it, then continues with the original one."""
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit_bytes:
            raise self._too_large()
        body = await self._read_body(receive)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and (body or kind):
            raise errors.UnsupportedMediaType(
                f"A body of type {kind[:100] or 'unknown'!r} is not accepted.", "Send Content-Type: application/json."
            )
        if b"\0" in body:  # never in UTF-8 JSON, but in UTF-16 and UTF-32, which the parser would accept
            raise bad_json()
        is_replayed = False

        async def replay() -> Message:
            nonlocal is_replayed
            if is_replayed:
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replay

    async def _read_body(self, receive: Receive) -> bytearray:
        """Return the body. Only `LARGE_AT_ONCE` large bodies are read concurrently; others wait unread."""
        body, has_slot = bytearray(), False
        async with contextlib.AsyncExitStack() as slot:
            while True:
                message = await receive()
                if message["type"] != "http.request":  # the caller disconnected: the body is incomplete
                    raise bad_json()
                body += message.get("body", b"")
                if len(body) > self._limit_bytes:
                    raise self._too_large()
                if not message.get("more_body"):
                    return body
                if not has_slot and len(body) > LARGE_BYTES:
                    await slot.enter_async_context(self._large)
                    has_slot = True

    def _too_large(self) -> TouchstoneError:
        return errors.PayloadTooLarge(
            f"The body is larger than {self._limit_bytes} bytes.",
            "Send less, or raise server.body_limit_bytes.",
        )


class _Sender:
    """Sends one response with the headers that every response has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers = dict(RESPONSE_HEADERS)
        self.has_started = False

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        self.has_started = True
        if message["type"] == "http.response.start":
            response_headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                response_headers.setdefault(name, value)
        await self._send(message)


def request_timeout(limit_s: float) -> errors.BadRequest:
    """Return the error for a request that did not arrive within the timeout."""
    return errors.BadRequest(
        f"The request timed out after {limit_s:g} s.", "Send it faster, or raise server.request_s."
    )


def is_equal(sent: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(sent.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def session_cookie(token: str) -> str:
    """Return the value of the page's cookie, which is derived from the token and does not reveal it."""
    return hmac.new(token.encode(), b"touchstone session", hashlib.sha256).hexdigest()


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""
