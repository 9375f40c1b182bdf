"""Security checks before every route: Host, Origin, token, JSON bodies of limited size, and response headers.

Every page that the user's browser opens can send requests to a local service. Without these checks such a page could
use it, by a form or by DNS rebinding.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import socket
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.common import errors
from backend.common.config.settings.schema import Server
from backend.common.errors import TouchstoneError
from backend.server.auth_token import Token
from backend.server.error_handlers import bad_json, respond

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
        self._hosts = {"localhost", socket.gethostname().lower(), settings.host.lower()}
        self._hosts |= {host.lower() for host in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with its body read. Log an unhandled exception."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            has_started = True
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    response_headers.setdefault(name, value)
            await send(message)

        try:
            self._check_origin(scope["method"], headers)
            scope.setdefault("state", {})["known"] = self._check_token(scope["path"], headers)
            if scope["method"] in _WITH_BODY and not scope["path"].startswith(UPLOADS):
                receive = await self._read_with_timeout(headers, receive)
        except TouchstoneError as error:
            unread = isinstance(error, errors.BadRequest | errors.PayloadTooLarge)
            closing = {"Connection": "close"} if unread else None
            await respond(error, closing, path=scope["path"])(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if has_started:
                raise  # part of the response was sent: only closing the connection shows that it is incomplete
            log.error("unhandled exception in a request", exc_info=error, extra={"path": scope["path"]})
            detail = "Unexpected internal error. The server's log has the details."
            failure = errors.Internal(detail, "Retry. If it happens again, report the log.")
            await respond(failure, path=scope["path"])(scope, receive, send_with_headers)

    def _check_origin(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name.lower() not in self._hosts and not _is_address(name):
            raise errors.ForbiddenHost(
                f"The Host {host[:100]!r} is not a name of this server.",
                "Use localhost or an IP address, or add the name to server.allowed_hosts.",
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
        if foreign or (method not in ("GET", "HEAD") and headers.get("sec-fetch-site") in ("cross-site", "same-site")):
            raise errors.ForbiddenOrigin(
                f"Pages of {(origin or 'another site')[:100]!r} may not use this server.",
                "Open the server's own page, or call it from a program instead of a web page.",
            )

    def _check_token(self, path: str, headers: Headers) -> bool:
        """Return whether the caller is authenticated. Raises Unauthorized if the path requires it."""
        token = self._token.value
        if token is None:
            return True
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_equal(sent.strip(), token):
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


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
