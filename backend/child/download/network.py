"""An HTTP client for downloads that checks every hop: httpx with our rules for redirects, proxies and certificates.

httpx speaks HTTP and builds redirected requests, without `Authorization` once they leave the origin. Four rules are our
own, because the library's are looser:

- Redirects are followed one at a time. None leads from https to http, or further into a private network (SSRF).
- The address of each direct connection is checked before a byte is sent, since a name can resolve to a private address.
- Proxies and `NO_PROXY` are those of urllib, which reads the settings of Windows and macOS with their exceptions.
- Certificates are those that the system trusts, and `SSL_CERT_FILE`; httpx would trust certifi's list alone.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import __version__
from backend.child.download.errors import Refused

if TYPE_CHECKING:
    import httpx

DEBIAN_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
MAX_REDIRECTS = 10


class Scope(enum.IntEnum):
    """How far inside an address is. A redirect may keep the scope or widen it, never narrow it."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


def address_scope(host: str) -> Scope:
    """Return the scope of a host. A name that is not an address counts as public until it is resolved."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return Scope.LOOPBACK
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return Scope.PUBLIC
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return Scope.LOOPBACK
    return Scope.PUBLIC if address.is_global else Scope.PRIVATE


class HopGuard:
    """Checks the hops of one request: the address of each connection, and each redirect."""

    def __init__(self, url: httpx.URL) -> None:
        if url.scheme != "https" and not (url.scheme == "http" and address_scope(url.host) == Scope.LOOPBACK):
            raise Refused("validation_error", f"{url.scheme}:// is not supported.", "Use an https:// address.")
        self._scope = address_scope(url.host)
        self._is_first_hop = True
        self.connections = 0

    def check_connection(self, address: str) -> None:
        """Check the address of a direct connection. The first one may be private: the user chose it. Raises Refused."""
        self.connections += 1
        scope = address_scope(address)
        if self._is_first_hop:
            self._scope = max(scope, self._scope)
        self._check_scope(scope)
        self._scope = scope

    def check_redirect(self, source: httpx.URL, target: httpx.URL) -> None:
        """Check a redirect before it is followed. Raises Refused."""
        if target.scheme != "https" and (source.scheme, target.scheme) != ("http", "http"):
            raise _not_followed(f"from {source.host} to an address that is not https ({target.scheme}://…)")
        self._check_scope(address_scope(target.host))
        self._is_first_hop = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Handle an event of httpcore's `trace` extension. What is raised here ends the request unsent."""
        if event == "connection.connect_tcp.complete":
            stream = info["return_value"]
            try:
                self.check_connection(str(stream.get_extra_info("server_addr")[0]))
            except Refused:
                stream.close()
                raise

    def _check_scope(self, scope: Scope) -> None:
        if scope > self._scope:
            raise _not_followed("to " + ("this machine" if scope == Scope.LOOPBACK else "a private network"))


class DownloadClient:
    """Opens one URL, as often as needed. `token` is sent to the origin of the URL only."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        """`timeout_s` limits connecting, and each wait for more bytes. Raises Refused for a URL that is not https."""
        import httpx

        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise Refused("validation_error", f"The URL is malformed: {error}.", "Correct the address.") from None
        HopGuard(self._url)
        self._timeout_s = timeout_s
        self._certificates = trusted_certificates()
        self._headers = {"User-Agent": f"Touchstone/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        self._headers["Connection"] = "close"  # a connection that is kept would not be checked again
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @contextlib.contextmanager
    def open(self, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Request the URL and follow its redirects; the body of the response is still to be read.

        Raises Refused, httpx.HTTPError. The status may be any; after too many redirects it is that of the last one.
        """
        import httpx

        guard = HopGuard(self._url)
        request = httpx.Request("GET", self._url, headers={**self._headers, **headers})
        options: dict[str, Any] = {"verify": self._certificates, "trust_env": False, "timeout": self._timeout_s}
        for hop in range(MAX_REDIRECTS + 1):
            is_local = address_scope(self._url.host) == Scope.LOOPBACK
            proxy = None if is_local else proxy_for(request.url, self._certificates)
            connections = guard.connections
            request.extensions["trace"] = guard.trace if proxy is None else None
            with httpx.Client(proxy=proxy, **options) as client, contextlib.ExitStack() as stack:
                try:
                    response = stack.enter_context(contextlib.closing(client.send(request, stream=True)))
                except httpx.InvalidURL:
                    raise _not_followed("to something that is not a web address") from None
                if proxy is None and guard.connections == connections:
                    raise RuntimeError("httpx connected without a trace event, so the address was not checked")
                if response.next_request is None or hop == MAX_REDIRECTS:
                    yield response
                    return
            guard.check_redirect(request.url, response.next_request.url)
            request = response.next_request


def proxy_for(url: httpx.URL, certificates: ssl.SSLContext) -> httpx.Proxy | None:
    """Return the proxy for a URL as the environment or the system sets it. Raises Refused if it cannot be used."""
    import httpx

    address = urllib.request.getproxies().get(url.scheme)
    if not address or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
        return None
    with contextlib.suppress(httpx.InvalidURL):
        proxy = httpx.URL(address if "://" in address else f"http://{address}")
        if proxy.scheme in ("http", "https"):
            return httpx.Proxy(proxy, ssl_context=certificates if proxy.scheme == "https" else None)
    raise Refused(
        "model_not_downloaded",
        "The model could not be downloaded: the proxy of the environment is not an HTTP proxy.",
        "Set HTTPS_PROXY to an HTTP proxy (http://HOST:PORT), or unset it, then retry.",
    )


def trusted_certificates() -> ssl.SSLContext:
    """Return a context with the system's issuers and SSL_CERT_FILE; if Python found none, Debian's or certifi's."""
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


def _not_followed(how: str) -> Refused:
    return Refused(
        "model_not_downloaded",
        f"The model could not be downloaded: the server redirects {how}; such redirects are not followed.",
        "Use the final address of the file.",
    )
