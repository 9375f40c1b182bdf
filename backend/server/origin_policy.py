"""Which names a request may be sent to, and which web pages may send it: DNS rebinding, CORS and its preflight."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from backend.common import errors
from backend.common.config.settings.schema import Server

CALLABLE = ("/api/", "/v1/")  # what pages of `server.allowed_origins` may call
_CONTAINER_HOST = "host.docker.internal"  # how a container reaches this machine
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = "X-Job-Id, X-Job-Ids, X-Device-Asked, X-Device-Used, Location, Retry-After"
_PREFLIGHT_AGE_S = 600
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")


class OriginPolicy:
    """The names of this server, and the web pages that may use it."""

    def __init__(self, settings: Server) -> None:
        public = urlsplit(settings.public_url or "")
        self._named = {_plain_name(host) for host in settings.allowed_hosts}
        self._named |= {public.hostname} if public.hostname else set()
        self._hosts = {"localhost", _CONTAINER_HOST, _plain_name(socket.gethostname()), _plain_name(settings.host)}
        self._hosts |= self._named
        self._origins = {origin.rstrip("/").lower() for origin in settings.allowed_origins}

    def check(self, method: str, path: str, headers: Headers) -> str | None:
        """Return the origin of a page of another site that may make this request, None if CORS does not apply.

        Raises ForbiddenHost and ForbiddenOrigin.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _plain_name(host.rsplit(":", 1)[0] if not host.endswith("]") else host)
        if name not in self._hosts and not _is_address(name):
            raise errors.ForbiddenHost(
                f"The Host {host[:100]!r} is not a name of this server.",
                "Use localhost or an IP address, or add the name to server.allowed_hosts.",
            )
        if origin is not None and self._may_call(origin) and path.startswith(CALLABLE):
            return origin
        is_own = origin is not None and self._is_own(origin, host)
        is_cross = method not in ("GET", "HEAD") and headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if (origin is not None and not is_own) or (is_cross and not is_own):
            raise errors.ForbiddenOrigin(
                f"Pages of {(origin or 'another site')[:100]!r} may not use this server.",
                "Open the server's own page, or add the origin to server.allowed_origins.",
            )
        return None

    def _may_call(self, origin: str) -> bool:
        return origin.lower() in self._origins or ("*" in self._origins and origin != "null")

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an origin is this server's page: of the same host, or of a name that the user allowed."""
        if origin in (f"http://{host}", f"https://{host}"):
            return True
        try:
            parts = urlsplit(origin)
            name = _plain_name(parts.hostname or "")
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and name in self._named


def cors_headers(origin: str) -> dict[str, str]:
    """Return the headers with which a browser lets a page of this origin read a response."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _EXPOSED,
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Vary": "Origin",
    }


def preflight_response(headers: Headers) -> Response | None:
    """Return the response to a browser's question whether it may send a request, None if it is not such a question."""
    if "access-control-request-method" not in headers:
        return None
    answer = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S)}
    wanted = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        answer["Access-Control-Allow-Headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=answer)


def _plain_name(name: str) -> str:
    """Return a host name in lower case, without the dot that marks it as complete."""
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
