"""Explain why a file could not be fetched from a web server: from the response, or from the exception.

Exceptions are recognised by the names of their classes, since ours come from httpx and those of `huggingface_hub` from
httpx2, where they have the same names.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from backend.child.download.errors import Refused, certificate_not_trusted, not_fetched

BY_HAND = "Or fetch the file another way and put it into a model folder."
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
Untrusted = ssl.SSLCertVerificationError


@dataclass(frozen=True)
class RemoteFile:
    """A file as the user knows it: the host to show, and the name of the file there."""

    host: str
    name: str


class TransientError(Exception):
    """An error that a retry may fix. `refused` is raised after the last retry; `wait_s` is from `Retry-After`."""

    def __init__(self, refused: Refused, wait_s: float | None = None) -> None:
        super().__init__(refused.detail)
        self.refused, self.wait_s = refused, wait_s


def causes(error: BaseException) -> list[BaseException]:
    """Return the exception and what caused it, outermost first."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def has_class(error: BaseException, *names: str) -> bool:
    """Return whether the exception is an instance of a class with one of these names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def is_untrusted(error: BaseException) -> bool:
    """Return whether the certificate was rejected; a retry would fail the same way."""
    return any(isinstance(cause, Untrusted) for cause in causes(error))


def explain_network(error: BaseException, file: RemoteFile) -> Refused:
    """Return the error to show for an exception while connecting or reading."""
    chain = causes(error)
    if is_untrusted(error):
        return certificate_not_trusted(file.host)
    if any(isinstance(cause, socket.gaierror) for cause in chain):
        return not_fetched(
            f"no network: the name {file.host}, or that of a server it redirects to, cannot be resolved",
            f"Check the address, connect to the network, or set HTTPS_PROXY if you need a proxy. {BY_HAND}",
        )
    if has_class(error, "ProxyError"):
        return not_fetched(
            f"the proxy did not connect to {file.host} ({error})",
            f"Correct HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT), or unset it, and try again. {BY_HAND}",
        )
    if any(isinstance(cause, TimeoutError) or has_class(cause, "TimeoutException") for cause in chain):
        why = f"timeout: {file.host} sent nothing for too long"
    else:
        why = f"{file.host} cannot be reached or broke off ({str(error) or type(error).__name__})"
    return not_fetched(why, f"Check the network and HTTPS_PROXY, then retry: the download resumes. {BY_HAND}")


def explain_status(status: int, headers: Mapping[str, str], file: RemoteFile) -> Refused | TransientError:
    """Return the error to raise for a response without the file."""
    if status in (408, 425, 429) or status >= 500:
        return TransientError(overloaded(status, file.host), _seconds(headers.get("Retry-After")))
    if status in (401, 403, 407):
        return not_fetched(
            f"{file.host} does not serve {file.name} without signing in (HTTP status {status})",
            "Fetch the file where you are signed in, and put it into a model folder.",
        )
    if status in (404, 410):
        return not_fetched(f"{file.host} has no such file {file.name} (HTTP status {status})", "Check the address.")
    if 300 <= status < 400:
        return not_fetched(f"{file.host} redirects too often (HTTP status {status})", f"Check the address. {BY_HAND}")
    return not_fetched(f"{file.host} answered with HTTP status {status}", f"Check the address. {BY_HAND}")


def overloaded(status: int, host: str) -> Refused:
    """Return the error for a server that may answer later."""
    problem = "is limiting requests" if status == 429 else "has an internal error"
    return not_fetched(f"{host} {problem} (HTTP status {status})", f"Retry later. {BY_HAND}")


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after or ""))
    except ValueError:
        return None  # a date: the default backoff is used
