"""Why a file could not be fetched from a web server, in words: from its answer, and from what happened on the way."""

from __future__ import annotations

import socket
import ssl
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from backend.child.download.errors import Refused, certificate_not_trusted, not_fetched

BY_HAND = "Or fetch the file another way and put it into a model folder."


@dataclass(frozen=True)
class Place:
    """What is fetched, as a person knows it."""

    host: str
    name: str


class Transient(Exception):
    """Worth another try. `refused` is what is said when there are no tries left."""

    def __init__(self, refused: Refused, wait_s: float | None = None) -> None:
        super().__init__(refused.detail)
        self.refused, self.wait_s = refused, wait_s


def explain_network(error: BaseException, place: Place) -> Refused:
    """What an exception on the way means."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_not_trusted(place.host)
    if isinstance(error, socket.gaierror):
        return not_fetched(
            f"no network: the name {place.host}, or that of a server it leads to, cannot be resolved",
            f"Check the address, connect to the network, or set HTTPS_PROXY if you need a proxy. {BY_HAND}",
        )
    why = f"{place.host} sent nothing for too long" if isinstance(error, TimeoutError) else None
    return not_fetched(
        why or f"{place.host} cannot be reached or broke off ({str(error) or type(error).__name__})",
        f"Check the network and HTTPS_PROXY, and try again: it goes on where it broke off. {BY_HAND}",
    )


def is_untrusted(error: BaseException) -> bool:
    """Whether another try would end the same, since the certificate is the trouble."""
    return isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError) or isinstance(
        error, ssl.SSLCertVerificationError
    )


def explain_status(status: int, headers: Mapping[str, str] | Message, place: Place) -> Refused | Transient:
    """What an answer other than the file means."""
    if status in (408, 425, 429) or status >= 500:
        said = "is being asked too often" if status == 429 else "has trouble of its own"
        refused = not_fetched(f"{place.host} {said} (HTTP status {status})", f"Try again later. {BY_HAND}")
        return Transient(refused, _seconds(headers.get("Retry-After")))
    if status in (401, 403, 407):
        return not_fetched(
            f"{place.host} does not give {place.name} to strangers (HTTP status {status})",
            "Fetch the file where you are signed in, and put it into a model folder.",
        )
    if status in (404, 410):
        return not_fetched(f"{place.host} has no such file {place.name} (HTTP status {status})", "Check the address.")
    return not_fetched(f"{place.host} answered with HTTP status {status}", f"Check the address. {BY_HAND}")


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after or ""))
    except ValueError:
        return None  # a date: the usual wait will do
