"""Why a download failed, in words: from what pip printed, and from what the operating system said."""

from __future__ import annotations

import errno
import re
from pathlib import Path

CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLCertVerificationError|invalid path: .*ca", re.I
)
_DISK_FULL = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|not enough space on the disk", re.I)
_NO_NAME = re.compile(
    r"Name or service not known|name resolution|getaddrinfo failed|nodename nor servname|NameResolutionError"
    r"|No address associated",
    re.I,
)
_NO_CONNECTION = re.compile(
    r"NewConnectionError|Connection refused|Network is unreachable|No route to host|timed? ?out|ProxyError"
    r"|Connection (reset|aborted|broken)|RemoteDisconnected|IncompleteRead|ProtocolError|SSLError|EOF occurred",
    re.I,
)
_VERSIONS = re.compile(r"from versions: (?!none)([^)]+)\)")
_NO_PACKAGE = re.compile(r"No matching distribution found")
_NO_PIP = re.compile(r"No module named '?pip|has no pip")
_HASHES = re.compile(r"DO NOT MATCH THE HASHES", re.I)
_HTTP = re.compile(r"HTTP error (\d{3})|(\d{3}) (?:Client|Server) Error")
_BY_HAND = "A model file that you fetched another way can be named under `models:` in config.yaml."


class Refused(Exception):
    """The download did not work; `code` is one of `backend.common.errors`."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.code, self.detail, self.remedy = code, detail, remedy


def explain_os(error: OSError, folder: Path) -> Refused:
    """What an OSError while writing means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or getattr(error, "winerror", None) == 112:
        return disk_full(folder)
    reason = error.strerror or str(error)
    return Refused(
        "configuration",
        f"The model cannot be stored in {folder}: {reason}.",
        "Make that folder writable, or set TOUCHSTONE_DATA_DIR to another one.",
    )


def explain_pip(said: str, requirement: str, folder: Path) -> Refused:
    """What pip's output means. The order matters: pip ends many failures with the same last line."""
    if _NO_PIP.search(said):
        return not_fetched(
            "this Python environment has no pip",
            "Run `python -m ensurepip --upgrade` in it, or make the environment anew with the launcher.",
        )
    if _DISK_FULL.search(said):
        return disk_full(folder)
    if CERTIFICATE.search(said):
        return certificate_not_trusted("the package index", "SSL_CERT_FILE (or PIP_CERT, or REQUESTS_CA_BUNDLE)")
    if _HASHES.search(said):
        return Refused(
            "model_broken", f"What arrived for {requirement} is not what the package index announced.", "Try again."
        )
    if versions := _VERSIONS.search(said):
        return not_fetched(
            f"the package index has no {requirement} for this Python, only the versions {versions[1]}",
            f"Update Touchstone or check the index in pip's configuration. {_BY_HAND}",
        )
    if _NO_NAME.search(said):
        return not_fetched(
            "no network: the name of the package index cannot be resolved",
            f"Connect to the network, or set HTTPS_PROXY if you need a proxy, and try again. {_BY_HAND}",
        )
    if _NO_CONNECTION.search(said):
        return not_fetched(
            f"the package index cannot be reached or broke off ({_telling_line(said)})",
            f"Check the network, HTTPS_PROXY and pip's configuration, and try again. {_BY_HAND}",
        )
    if status := _HTTP.search(said):
        return not_fetched(
            f"the package index answered with HTTP status {status[1] or status[2]}",
            f"Check the index and its credentials in pip's configuration, and try again. {_BY_HAND}",
        )
    if _NO_PACKAGE.search(said):
        return not_fetched(
            f"the package index knows no {requirement}", f"Check the index in pip's configuration. {_BY_HAND}"
        )
    return not_fetched(f"pip failed: {_telling_line(said)}", f"Correct what pip says and try again. {_BY_HAND}")


def not_fetched(why: str, remedy: str) -> Refused:
    """The usual refusal: nothing has come, nothing is broken."""
    return Refused("model_not_downloaded", f"The model could not be downloaded: {why}.", remedy)


def disk_full(
    folder: Path, needed: int | None = None, free: int = 0, other: str = "set TOUCHSTONE_DATA_DIR"
) -> Refused:
    """The refusal for a disk that is too small; `other` moves what is stored there."""
    numbers = "" if needed is None else f": {needed / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB free"
    return Refused(
        "disk_full",
        f"The disk is full: the model does not fit into {folder}{numbers}.",
        f"Free some space, or {other} to a folder on another disk.",
    )


def certificate_not_trusted(who: str, variables: str = "SSL_CERT_FILE") -> Refused:
    """The refusal for a certificate of an unknown issuer. It never offers to switch checks off."""
    return not_fetched(
        f"certificate not trusted: {who}, or a proxy in between that signs anew, shows a certificate "
        "whose issuer this machine does not know",
        f"Set {variables} to a PEM file with your organisation's root "
        "certificate, or add that certificate to the system's trust store.",
    )


def _telling_line(said: str) -> str:
    """The last line that names an error, without credentials that a URL may carry."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    line = next((line for line in lines if _NO_CONNECTION.search(line)), telling[-1])
    return re.sub(r"//[^/@\s]+@", "//", line)[:300]
