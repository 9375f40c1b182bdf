"""What stands before every route: Host, Origin, token, JSON bodies of limited size, and the headers of each answer.

A local service is reachable by every page that the user's browser opens; without these checks such a page could use it
(by a form, or by DNS rebinding).
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
OPEN_API = ("/api/session", "/api/health")
ANSWER_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILES = "/api/files/"  # bodies sent there are no JSON, and their route reads them by its own limits
_WITH_BODY = ("POST", "PUT", "PATCH")
LARGE_BYTES, LARGE_AT_ONCE = 256 << 10, 16  # bodies beyond that size, which would fill the memory if all came at once


class SecurityMiddleware:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: Server, token: Token, static: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._limit = settings.body_limit_bytes
        self._request_s = settings.request_s
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._static = static
        self._hosts = {"localhost", socket.gethostname().lower(), settings.host.lower()}
        self._hosts |= {host.lower() for host in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request, or passes it on with its body read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in ANSWER_HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        try:
            self._check_origin(scope["method"], headers)
            scope.setdefault("state", {})["known"] = self._check_token(scope["path"], headers)
            if scope["method"] in _WITH_BODY and not scope["path"].startswith(FILES):
                receive = await self._read_in_time(headers, receive)
        except TouchstoneError as error:
            unread = isinstance(error, errors.BadRequest | errors.PayloadTooLarge)
            closing = {"Connection": "close"} if unread else None
            await respond(error, closing, path=scope["path"])(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, receive, send_guarded)
        except Exception as error:
            if begun:
                raise  # half an answer is out: only cutting the connection tells that it is not whole
            log.error("a request failed in a way nobody foresaw", exc_info=error, extra={"path": scope["path"]})
            detail = "The server failed in a way that it did not foresee; its log has the details."
            failure = errors.Internal(detail, "Try again; if it repeats, report the log.")
            await respond(failure, path=scope["path"])(scope, receive, send_guarded)

    def _check_origin(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name.lower() not in self._hosts and not _is_address(name):
            raise errors.ForbiddenHost(
                f"The Host {host[:100]!r} is not one of this server's.",
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
        """Whether the caller is known; raises Unauthorized where only known ones may go."""
        token = self._token.value
        if token is None:
            return True
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(sent.strip(), token):
            return True
        if same(_cookie(headers), session_of(token)):
            return True
        if path in OPEN_API or path in self._static:
            return False
        raise errors.Unauthorized(
            "This server wants its token.", "Send Authorization: Bearer TOKEN, or sign in on the page."
        )

    async def _read_in_time(self, headers: Headers, receive: Receive) -> Receive:
        try:
            async with asyncio.timeout(self._request_s):
                return await self._read(headers, receive)
        except TimeoutError:
            raise late(self._request_s) from None

    async def _read(self, headers: Headers, receive: Receive) -> Receive:
        """Reads the whole body, and gives a `receive` that hands it on and then goes on as before."""
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            raise self._too_large()
        body = await self._whole(receive)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and (body or kind):
            raise errors.UnsupportedMediaType(
                f"A body of type {kind[:100] or 'unknown'!r} is not accepted.", "Send Content-Type: application/json."
            )
        if b"\0" in body:  # never in JSON as UTF-8, always in UTF-16 and UTF-32, which the parser would take
            raise bad_json()
        handed_on = False

        async def receive_again() -> Message:
            nonlocal handed_on
            if handed_on:
                return await receive()
            handed_on = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return receive_again

    async def _whole(self, receive: Receive) -> bytearray:
        """The body, in memory; of those that are large only so many come at once, and the others wait unread."""
        body, waits = bytearray(), True
        async with contextlib.AsyncExitStack() as turn:
            while True:
                message = await receive()
                if message["type"] != "http.request":  # the caller left: what came is not what was meant
                    raise bad_json()
                body += message.get("body", b"")
                if len(body) > self._limit:
                    raise self._too_large()
                if not message.get("more_body"):
                    return body
                if waits and len(body) > LARGE_BYTES:
                    await turn.enter_async_context(self._large)
                    waits = False

    def _too_large(self) -> TouchstoneError:
        return errors.PayloadTooLarge(
            f"The body is larger than {self._limit} bytes.", "Send less, or raise server.body_limit_bytes."
        )


def late(limit_s: float) -> errors.BadRequest:
    """The refusal for a request that trickles in."""
    return errors.BadRequest(
        f"The request did not come whole within {limit_s:g} s.", "Send it at once, or raise server.request_s."
    )


def same(sent: str, wanted: str) -> bool:
    """Compares secrets in constant time."""
    return hmac.compare_digest(sent.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


def session_of(token: str) -> str:
    """The value of the page's cookie: it proves the token without being it."""
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
