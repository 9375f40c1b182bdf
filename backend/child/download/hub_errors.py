"""Explain errors of Hugging Face from the exceptions of `huggingface_hub`, recognised by their class names."""

from __future__ import annotations

import socket
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from backend.child.download.errors import Refused, not_fetched
from backend.child.download.http_errors import (
    BY_HAND,
    TRANSIENT_STATUSES,
    RemoteFile,
    causes,
    explain_network,
    has_class,
    is_untrusted,
    overloaded,
)


@dataclass(frozen=True)
class HubQuery:
    """What is requested, and from which endpoint. `has_token`: whether the request is signed."""

    repo: str
    revision: str
    file: str | None
    endpoint: str
    has_token: bool

    @property
    def host(self) -> str:
        """The server's name to show."""
        host = urllib.parse.urlsplit(self.endpoint).hostname or self.endpoint
        return "Hugging Face" if host == "huggingface.co" else f"{host} (HF_ENDPOINT)"


def explain(error: Exception, query: HubQuery) -> Refused:
    """Return the error to show for an exception of the library."""
    status = _status(error)
    if status is not None:
        return _explain_status(status, error, query)
    has_network_cause = any(
        isinstance(cause, socket.gaierror) or has_class(cause, "TransportError") for cause in causes(error)
    )
    if has_network_cause or is_untrusted(error):
        return explain_network(error, RemoteFile(query.host, query.file or query.repo))
    text = " ".join(str(error).split())[:300]
    if has_class(error, "HFValidationError"):
        return Refused("validation_error", f"{query.repo} cannot be a repository: {text}", "Correct its name.")
    return not_fetched(f"huggingface_hub failed on {query.repo} ({type(error).__name__}: {text})", BY_HAND)


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed."""
    status = _status(error)
    if status is not None:
        return status in TRANSIENT_STATUSES
    return not is_untrusted(error) and has_class(error, "NetworkError", "RemoteProtocolError", "TimeoutException")


def not_cached(query: HubQuery, cache: Path, missing: str) -> Refused:
    """Return the error for offline mode. `missing`: a file that is absent where others of the model are present."""
    what = f"{query.file} of {query.repo}" if query.file else query.repo
    return not_fetched(
        f"HF_HUB_OFFLINE is set, and {what} ({query.revision}) is not complete in the cache {cache}"
        + (f": {missing} is missing" if missing else ""),
        "Unset HF_HUB_OFFLINE and start again, or copy the cache of a machine that has it (HF_HOME).",
    )


def incompatible_endpoint(query: HubQuery) -> Refused:
    """Return the error for a server that does not answer as Hugging Face does."""
    return not_fetched(
        f"{query.host} does not answer as Hugging Face does: it sends no commit or no ETag for {query.repo}",
        "Check HF_ENDPOINT, and whether a proxy in between changes responses.",
    )


def corrupt_file(query: HubQuery, name: str) -> Refused:
    """Return the error for a file that does not match its checksum."""
    return Refused(
        "model_broken",
        f"The file {name} of {query.repo} does not match its checksum; it was deleted.",
        "Retry; if it repeats, a proxy or mirror in between changes files.",
    )


def other_file(query: HubQuery, name: str, published: str) -> Refused:
    """Return the error for a file of the catalogue that the hub publishes with another checksum."""
    return Refused(
        "model_broken",
        f"{query.host} publishes {name} of {query.repo} with the checksum {published}, which is not that of the "
        "catalogue. Nothing was downloaded.",
        f"Update Touchstone. Or add the file as a model of your own: hf:{query.repo}/{name}",
    )


def _status(error: Exception) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _explain_status(status: int, error: Exception, query: HubQuery) -> Refused:
    page = f"https://huggingface.co/{query.repo}"
    start_again = "set HF_TOKEN to a token of that account, and start the server again"
    if has_class(error, "GatedRepoError"):
        then = "retry the download" if query.has_token else start_again
        account = ", by the account of HF_TOKEN" if query.has_token else ""
        return not_fetched(
            f"the licence of {query.repo} has to be accepted first{account}", f"Accept the licence at {page}, {then}."
        )
    if has_class(error, "EntryNotFoundError"):
        return not_fetched(f"{query.repo} has no file {query.file}", f"See the list of files at {page}/tree/main.")
    if has_class(error, "RevisionNotFoundError"):
        return not_fetched(f"{query.repo} has no revision {query.revision}", f"See {page}, or leave the revision out.")
    if status in (408, 425, 429) or status >= 500:
        return overloaded(status, query.host)
    if status == 401 and query.has_token:
        return not_fetched(
            f"{query.host} does not accept HF_TOKEN for {query.repo}, or the repository does not exist",
            f"Check the name at {page} and the token at https://huggingface.co/settings/tokens.",
        )
    if status == 403:
        return not_fetched(
            f"{query.host} does not allow access to {query.repo}",
            f"Accept the licence at {page} if it asks for that, {start_again}.",
        )
    hint = "" if query.has_token else f" If it is private, {start_again}."
    return not_fetched(
        f"{query.host} has no {query.repo}, or does not show it without signing in (HTTP status {status})",
        f"Check the name at {page}.{hint}",
    )
