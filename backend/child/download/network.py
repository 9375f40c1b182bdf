"""Opens an address: trusted issuers, proxies, and redirects that neither leave https nor lead inwards.

urllib rather than httpx: it needs nothing beside Python, takes issuers from the system's own store (on Windows too, and
SSL_CERT_FILE everywhere) and proxies from the environment or the system's settings, and lets each hop be looked at.
"""

from __future__ import annotations

import functools
import http.client
import ipaddress
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any

from backend.child.download.errors import Refused

_PUBLIC, _PRIVATE, _LOOPBACK = 0, 1, 2
DEBIAN_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
_SAME_ON_EVERY_HOP = ("Range", "If-range", "User-agent")  # as urllib writes them


def inwardness(host: str) -> int:
    """How far inside an address lies: public, private, or this very machine. A name that is no address is public."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return _LOOPBACK
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _PUBLIC
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback or address.is_unspecified:
        return _LOOPBACK
    return _PUBLIC if address.is_global else _PRIVATE


class Net:
    """Opens one source, again and again if need be."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self._url, self._token, self._timeout_s = url, token, timeout_s
        self._origin = (parts.scheme, parts.netloc)
        host = parts.hostname or ""
        check_scheme(parts.scheme, host)
        self._named = inwardness(host)
        self._now = self._named
        self._redirected = False
        proxies = {} if self._named == _LOOPBACK else urllib.request.getproxies()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), _Tls(self, trusted()), _Http(self), _Redirects(self)
        )

    def open(self, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Asks for the file. Raises Refused, OSError, http.client.HTTPException, and HTTPError for a status."""
        self._now, self._redirected = self._named, False
        request = urllib.request.Request(self._url, headers=dict(headers))
        self.sign(request)
        answer: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout_s)
        return answer

    def sign(self, request: urllib.request.Request) -> None:
        """Adds the token where it belongs, and nowhere else."""
        parts = urllib.parse.urlsplit(request.full_url)
        if self._token and (parts.scheme, parts.netloc) == self._origin:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")

    def reached(self, address: str) -> None:
        """Called with the address of each connection that no proxy makes. Raises Refused."""
        depth = inwardness(address)
        if not self._redirected:
            self._now = max(depth, self._named)
        self._check(depth)
        self._now = depth

    def turned(self, request: urllib.request.Request, url: str) -> urllib.request.Request:
        """The request that follows a redirect. Raises Refused."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and (request.type, parts.scheme) != ("http", "http"):
            raise _led_away(f"from {request.host} to an address that is not https ({parts.scheme}://…)")
        self._check(inwardness(parts.hostname or ""))
        self._redirected = True
        kept = {name: value for name, value in request.headers.items() if name in _SAME_ON_EVERY_HOP}
        following = urllib.request.Request(url, headers=kept, unverifiable=True)
        self.sign(following)
        return following

    def _check(self, depth: int) -> None:
        if depth > self._now:
            where = "this very machine" if depth == _LOOPBACK else "a private network"
            raise _led_away(f"to an address of {where}")


def check_scheme(scheme: str, host: str) -> None:
    """https, or plain http to this very machine. Raises Refused."""
    if scheme != "https" and not (scheme == "http" and inwardness(host) == _LOOPBACK):
        raise Refused("validation_error", f"{scheme}:// is not fetched from.", "Use an https:// address.")


def trusted() -> ssl.SSLContext:
    """The system's issuers and those of SSL_CERT_FILE; where Python found none, those of Linux or of certifi."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if context.cert_store_stats()["x509_ca"] or paths.cafile or paths.capath:
        return context
    if Path(DEBIAN_CA_FILE).is_file():
        context.load_verify_locations(DEBIAN_CA_FILE)
        return context
    try:
        import certifi
    except ImportError:
        return context
    context.load_verify_locations(certifi.where())
    return context


def _led_away(how: str) -> Refused:
    return Refused(
        "model_not_downloaded",
        f"The model could not be downloaded: the source led {how}, and that is not followed.",
        "Use the address that the file really has.",
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, net: Net) -> None:
        self._net = net

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request:
        return self._net.turned(req, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except urllib.error.HTTPError as error:
            if "Redirection to url" in error.msg:  # urllib's own words for ftp, file and the like
                raise _led_away("to something that is no web address") from None
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Tls(urllib.request.HTTPSHandler):
    def __init__(self, net: Net, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._connection = functools.partial(_TlsConnection, net=net, context=context)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self._connection = functools.partial(_PlainConnection, net=net)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, net: Net, **options: Any) -> None:
        super().__init__(host, **options)
        self._net = net

    def connect(self) -> None:
        super().connect()
        if not getattr(self, "_tunnel_host", None):
            _look(self._net, self.sock)


class _PlainConnection(http.client.HTTPConnection):
    def __init__(self, host: str, *, net: Net, **options: Any) -> None:
        super().__init__(host, **options)
        self._net = net

    def connect(self) -> None:
        super().connect()
        _look(self._net, self.sock)


def _look(net: Net, connected: socket.socket) -> None:
    try:
        net.reached(str(connected.getpeername()[0]))
    except Refused:
        connected.close()
        raise
