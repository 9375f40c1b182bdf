"""What Hugging Face refuses, in words: from the exceptions of `huggingface_hub`, which are known by name."""

from __future__ import annotations

import socket
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from backend.child.download.errors import Refused, not_fetched
from backend.child.download.http_errors import BY_HAND, Place, explain_network

_PASSING = ("ConnectError", "ReadError", "RemoteProtocolError", "TimeoutException", "NetworkError")
_PASSING_STATUSES = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Asked:
    """What was asked for, and of whom. `has_token`: whether a token went along."""

    repo: str
    revision: str
    file: str | None
    endpoint: str
    has_token: bool

    @property
    def host(self) -> str:
        """Whom the user knows."""
        host = urllib.parse.urlsplit(self.endpoint).hostname or self.endpoint
        return "Hugging Face" if host == "huggingface.co" else f"{host} (HF_ENDPOINT)"


def explain(error: Exception, asked: Asked) -> Refused:
    """The refusal that an exception means."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return _refused(status, _names(error), asked)
    chain = _chain(error)
    telling = next((one for one in chain if isinstance(one, (ssl.SSLCertVerificationError, socket.gaierror))), None)
    if telling is not None or any({*_PASSING, "ProxyError", "UnsupportedProtocol"} & _names(one) for one in chain):
        return explain_network(telling or error, Place(asked.host, asked.file or asked.repo))
    said = " ".join(str(error).split())[:300]
    if "HFValidationError" in _names(error):
        return Refused("validation_error", f"{asked.repo} cannot be a repository: {said}", "Correct its name.")
    return not_fetched(f"huggingface_hub gave up on {asked.repo} ({type(error).__name__}: {said})", BY_HAND)


def is_passing(error: Exception) -> bool:
    """Whether the same question may be answered a moment later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in _PASSING_STATUSES
    untrusted = any(isinstance(one, ssl.SSLCertVerificationError) for one in _chain(error))
    return not untrusted and bool(set(_PASSING) & _names(error))


def not_kept(asked: Asked, cache: Path, lacking: str) -> Refused:
    """The refusal in offline mode. `lacking` is a file that is not there, where others are."""
    what = f"{asked.file} of {asked.repo}" if asked.file else asked.repo
    return not_fetched(
        f"HF_HUB_OFFLINE is set, and {what} ({asked.revision}) is not whole in the cache {cache}"
        + (f": {lacking} is missing" if lacking else ""),
        "Unset HF_HUB_OFFLINE and start again, or copy the cache of a machine that has it (HF_HOME).",
    )


def odd_endpoint(asked: Asked) -> Refused:
    """The refusal for a server that does not answer as Hugging Face does."""
    return not_fetched(
        f"{asked.host} does not answer as Hugging Face does: it tells no commit or no ETag of {asked.repo}",
        "Check HF_ENDPOINT, and whether a proxy in between changes answers.",
    )


def damaged(asked: Asked, name: str) -> Refused:
    """The refusal for a file that is not what was announced."""
    return Refused(
        "model_broken",
        f"The file {name} of {asked.repo} came other than announced; it was thrown away.",
        "Try again; if it stays so, a proxy or mirror in between changes files.",
    )


def _refused(status: int, names: set[str], asked: Asked) -> Refused:
    page = f"https://huggingface.co/{asked.repo}"
    start_again = "set HF_TOKEN to a token of that account, and start the server again"
    if "GatedRepoError" in names:
        then = "ask for the model again" if asked.has_token else start_again
        by_whom = ", by the account that HF_TOKEN stands for" if asked.has_token else ""
        return not_fetched(
            f"the licence of {asked.repo} has to be accepted first{by_whom}", f"Accept the licence at {page}, {then}."
        )
    if "EntryNotFoundError" in names:
        return not_fetched(f"{asked.repo} has no file {asked.file}", f"See the list of files at {page}/tree/main.")
    if "RevisionNotFoundError" in names:
        return not_fetched(f"{asked.repo} has no revision {asked.revision}", f"See {page}, or leave the revision out.")
    if status in (408, 425, 429) or status >= 500:
        said = "is being asked too often" if status == 429 else "has trouble of its own"
        return not_fetched(f"{asked.host} {said} (HTTP status {status})", f"Try again later. {BY_HAND}")
    if status == 401 and asked.has_token:
        return not_fetched(
            f"{asked.host} does not accept HF_TOKEN for {asked.repo}, or there is no such repository",
            f"Check the name at {page} and the token at https://huggingface.co/settings/tokens.",
        )
    if status == 403:
        return not_fetched(
            f"{asked.host} does not allow access to {asked.repo}",
            f"Accept the licence at {page} if it asks for that, {start_again}.",
        )
    hint = "" if asked.has_token else f" If it is private, {start_again}."
    return not_fetched(
        f"{asked.host} has no {asked.repo}, or does not show it to strangers (HTTP status {status})",
        f"Check the name at {page}.{hint}",
    )


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found
