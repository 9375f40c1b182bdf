"""Why a file could not be fetched from a web server, in words: from its answer, and from what happened on the way."""

from __future__ import annotations

import socket
import ssl
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from backend.child.fetch_errors import Refused, certificate_not_trusted, not_fetched

_BY_HAND = "Or fetch the file another way and put it into a model folder."


@dataclass(frozen=True)
class Place:
    """What is fetched, as a person knows it. `repo` is set for Hugging Face."""

    host: str
    name: str
    repo: str | None = None
    revision: str | None = None
    has_token: bool = False


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
            f"Check the address, connect to the network, or set HTTPS_PROXY if you need a proxy. {_BY_HAND}",
        )
    why = f"{place.host} sent nothing for too long" if isinstance(error, TimeoutError) else None
    return not_fetched(
        why or f"{place.host} cannot be reached or broke off ({str(error) or type(error).__name__})",
        f"Check the network and HTTPS_PROXY, and try again: it goes on where it broke off. {_BY_HAND}",
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
        refused = not_fetched(f"{place.host} {said} (HTTP status {status})", f"Try again later. {_BY_HAND}")
        return Transient(refused, _seconds(headers.get("Retry-After")))
    if place.repo and status in (401, 403, 404):
        return _of_hugging_face(status, headers.get("X-Error-Code") or "", place)
    if status in (401, 403, 407):
        return not_fetched(
            f"{place.host} does not give {place.name} to strangers (HTTP status {status})",
            "Fetch the file where you are signed in, and put it into a model folder.",
        )
    if status in (404, 410):
        return not_fetched(f"{place.host} has no such file {place.name} (HTTP status {status})", "Check the address.")
    return not_fetched(f"{place.host} answered with HTTP status {status}", f"Check the address. {_BY_HAND}")


def _of_hugging_face(status: int, code: str, place: Place) -> Refused:
    page = f"https://huggingface.co/{place.repo}"
    start_again = "set HF_TOKEN to a token of that account, and start the server again"
    if code == "GatedRepo":
        then = "ask for the model again" if place.has_token else start_again
        return not_fetched(
            f"the licence of {place.repo} has to be accepted first"
            + (", by the account that HF_TOKEN stands for" if place.has_token else ""),
            f"Accept the licence at {page}, {then}.",
        )
    if code == "EntryNotFound":
        return not_fetched(f"{place.repo} has no file {place.name}", f"See the list of files at {page}/tree/main.")
    if code == "RevisionNotFound":
        return not_fetched(f"{place.repo} has no revision {place.revision}", f"See {page}, or leave the revision out.")
    if status == 401 and place.has_token:
        return not_fetched(
            f"Hugging Face does not accept HF_TOKEN for {place.repo}, or there is no such repository",
            f"Check the name at {page} and the token at https://huggingface.co/settings/tokens.",
        )
    if status == 403:
        return not_fetched(
            f"Hugging Face does not allow access to {place.repo}",
            f"Accept the licence at {page} if it asks for that, {start_again}.",
        )
    hint = "" if place.has_token else f" If it is private, {start_again}."
    return not_fetched(
        f"Hugging Face has no {place.repo}, or does not show it to strangers (HTTP status {status})",
        f"Check the name at {page}.{hint}",
    )


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after or ""))
    except ValueError:
        return None  # a date: the usual wait will do
