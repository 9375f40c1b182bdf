"""Explain why a file could not be fetched from a web server: from the response, or from the exception.

Exceptions are recognised by the names of their classes, since ours come from httpx and those of `huggingface_hub` from
httpx2, where they have the same names.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from backend.child.download.errors import Refused, not_fetched
from backend.common.installer_errors import Operation, diagnosis_of

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
    reason, remedy = network_problem(error, file.host, "retry: the download resumes", BY_HAND)
    return not_fetched(reason, remedy)


def network_problem(error: BaseException, host: str, again: str, alternative: str) -> tuple[str, str]:
    """Return what an exception of a connection means, as a clause, and the remedy.

    `again`: how to retry, `alternative`: what to do otherwise; both are parts of the remedy.
    """
    chain = causes(error)
    operation = Operation(again, host, index_setting="the URL", alternative=alternative)
    if is_untrusted(error):
        kind, line = "certificate", ""
    elif any(isinstance(cause, socket.gaierror) for cause in chain):
        kind, line = "dns", ""
    elif has_class(error, "ProxyError"):
        kind, line = "proxy", str(error)
    elif any(isinstance(cause, TimeoutError) or has_class(cause, "TimeoutException") for cause in chain):
        kind, line = "network", "timeout: no data received"
    else:
        kind, line = "network", str(error) or type(error).__name__
    diagnosis = diagnosis_of(kind, operation)
    return f"{diagnosis.reason} ({line})" if line else diagnosis.reason, diagnosis.remedy


def explain_status(status: int, headers: Mapping[str, str], file: RemoteFile) -> Refused | TransientError:
    """Return the error to raise for a response without the file."""
    if status in (408, 425, 429) or status >= 500:
        return TransientError(overloaded(status, file.host), retry_after_s(headers))
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


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`; None if there is none."""
    try:
        return max(0.0, float(headers.get("Retry-After") or ""))
    except ValueError:
        return None  # a date: the default backoff is used
