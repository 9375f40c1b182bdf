"""One table of what pip, uv and HTTP errors mean: how to recognise each, what happened, and what to do.

Three programs use it: the launcher (pip, first start), the download of a model (pip or HTTP), and the installation of a
runtime (uv). Each describes itself as an `Operation`, whose fields fill the placeholders of the table. The patterns are
the messages of pip 21 to 26 and uv 0.13. Standard library only: the launcher runs before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.common.known_errors.machine import DENIED, DISK_FULL, NO_TEMPORARY_FOLDER, READ_ONLY

UV_KILLED = "uv was killed by "  # and the signal's name: a line that we add to uv's output
BEHIND_A_PROXY = "Behind a proxy set HTTPS_PROXY=http://HOST:PORT first."
_STATUS = (
    r"HTTP error (?P<pip>{0})|\b(?P<index>{0}) (?:Client|Server) Error|status code (?P<code>{0})"
    r"|HTTP status (?:client|server) error \((?P<uv>{0}[^)]*)\)"
)


@dataclass(frozen=True)
class Operation:
    """What a program was doing, as the messages name it. Optional: `alternative`, `remedies` by kind (final text)."""

    again: str  # "start again"
    source: str = "the package index"
    package: str = "package"
    index_setting: str = "the index in pip's configuration (`pip config list`)"
    certificate_setting: str = "SSL_CERT_FILE"
    alternative: str = ""  # another way to get the file; added to the remedy where the source is at fault
    remedies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InstallerError:
    """A kind of failure. `reason` and `remedy` have placeholders; groups of `pattern` fill them too."""

    kind: str
    pattern: str
    reason: str
    remedy: str
    is_early: bool = True  # it happens before the installer changes anything
    is_source: bool = False  # the source is at fault, so that another source may help


@dataclass(frozen=True)
class Diagnosis:
    """A failure in words. `reason` is a clause without a full stop, `line` the line of the output that shows it."""

    kind: str
    reason: str
    remedy: str
    line: str
    is_early: bool


ERRORS = (
    InstallerError(
        "no_pip",
        r"No module named '?pip|has no pip",
        "this Python environment has no pip",
        "Run `python -m ensurepip --upgrade` in it, or recreate the environment with the launcher.",
    ),
    InstallerError(
        "disk_full",
        DISK_FULL + r"|os error 28\b|not enough space",
        "the disk is full",
        "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk, then {again}.",
        is_early=False,
    ),
    InstallerError(
        "killed",
        UV_KILLED,
        "the system ended the installer",
        "{Again}: the packages downloaded so far are kept. If it repeats, close other programs: memory may be short.",
        is_early=False,
    ),
    InstallerError(
        "clock",
        r"certificate is not yet valid|certificate has expired|certificate: (?:Expired|NotValidYet)",
        "the certificate of {source}{where} is not valid at the time of this machine's clock",
        "Set the clock (`date` shows it; under WSL `sudo hwclock -s` after Windows slept), then {again}.",
    ),
    InstallerError(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLCertVerificationError|TLS CA certificate bundle"
        r"|invalid path: .*ca|invalid peer certificate|UnknownIssuer",
        "certificate not trusted: the issuer of the certificate of {source}{where} is unknown to this machine; a proxy "
        "may inspect TLS",
        "Set {certificate_setting} to the PEM file with your organisation's root certificate, or add that certificate "
        "to the system's trust store, then {again}.",
    ),
    InstallerError(
        "proxy",
        r"ProxyError|Cannot connect to proxy|Tunnel connection failed|407 Proxy|tunnel error",
        "the proxy did not connect to {source}{where}",
        "Correct HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT), or unset it, then {again}.",
        is_source=True,
    ),
    InstallerError(
        "no_python",
        r"No interpreter found|python-build-standalone|No download found for request",
        "the Python that it needs is not installed and could not be downloaded",
        "Install that Python, then {again}.",
    ),
    InstallerError(
        "insecure_index",
        r"not a trusted or secure host",
        "the package index of pip's configuration has no TLS, and pip does not trust it",
        "Set PIP_INDEX_URL to its https address, or PIP_TRUSTED_HOST to its name if you do trust it, then {again}.",
    ),
    InstallerError(
        "credentials",
        _STATUS.format("40[13]") + "|(?P<pip_401>401) Error, Credentials not correct",
        "{source} answered {status}{where}: it requires credentials",
        "Add the credentials to {index_setting} (https://USER:PASSWORD@HOST/simple) or to a netrc file, then {again}.",
        is_source=True,
    ),
    InstallerError(
        "versions",
        r"from versions: (?P<versions>(?!none)[^)]+)\)",
        "{source} has no {package} for this Python and machine, only the versions {versions}",
        "Update Touchstone, or check {index_setting}.",
        is_source=True,
    ),
    InstallerError(
        "status",
        _STATUS.format(r"\d{3}"),
        "{source} answered {status}{where}",
        "Retry later, or correct {index_setting}, then {again}.",
        is_source=True,
    ),
    InstallerError(
        "damaged",
        r"DO NOT MATCH THE HASHES|BadZipFile|invalid wheel|hash mismatch",
        "what arrived is not what {source} announced: it was damaged or changed in transit",
        "{Again}. If it repeats, a proxy or mirror in between changes files; clear pip's cache "
        "(`python -m pip cache purge`).",
    ),
    InstallerError(
        "socks",
        r"SOCKS support",
        "the proxy of the environment is a SOCKS proxy, which pip cannot use without another package",
        "Set HTTPS_PROXY to an HTTP proxy, or unset ALL_PROXY and HTTPS_PROXY, then {again}.",
    ),
    InstallerError(
        "temporary_folder",
        NO_TEMPORARY_FOLDER,
        "no folder for temporary files is writable",
        "Set TMPDIR to a folder that you may write to, then {again}.",
    ),
    InstallerError(
        "long_path",
        r"filename or extension is too long|\[WinError 206\]|long path support|long-paths",
        "a path is longer than Windows allows",
        r"Move the folder to a short path such as C:\ts, or allow long paths (docs/windows.md), then {again}.",
        is_early=False,
    ),
    InstallerError(
        "hashes_required",
        r"--require-hashes",
        "the setting require-hashes of pip allows packages with known hashes only",
        "Unset PIP_REQUIRE_HASHES (or require-hashes in pip's configuration), then {again}.",
    ),
    InstallerError(
        "dns",
        r"name resolution|Name or service not known|getaddrinfo failed|nodename nor servname|NameResolutionError"
        r"|No address associated|dns error",
        "no network: the name of {source} cannot be resolved{where}",
        "Connect this machine to the network (behind a proxy set HTTPS_PROXY), then {again}.",
        is_source=True,
    ),
    InstallerError(
        "network",
        r"Network is unreachable|No route to host|Connection refused|NewConnectionError|timed? ?out|ConnectTimeout"
        r"|Connection (?:reset|aborted|broken|closed)|RemoteDisconnected|IncompleteRead|ProtocolError|SSLError"
        r"|EOF occurred|Failed to (?:fetch|download)|error sending request|tcp connect error|broken pipe"
        r"|IncompleteMessage|error decoding response body|Could not connect|request or response body error",
        "{source} cannot be reached{where}, or the connection broke",
        "Check the network, HTTPS_PROXY and {index_setting}, then {again}.",
        is_source=True,
    ),
    InstallerError(
        "empty_index",
        r"from versions: none",
        "{source} has no {package}: it was not reached, or offers none for this Python",
        "Check the network and {index_setting}, then {again}.",
        is_source=True,
    ),
    InstallerError(
        "no_match",
        r"No matching distribution|Could not find a version|not a supported wheel|ResolutionImpossible"
        r"|No solution found|was not found in the package registry|has no wheels",
        "{source} has no {package} for this Python and machine",
        "Update Touchstone, or check {index_setting}.",
        is_source=True,
    ),
    InstallerError(
        "denied",
        DENIED + "|" + READ_ONLY + r"|os error (?:13|5|30)\b",
        "a file could not be written",
        "Make the data folder writable, close programs that use its files, then {again}.",
        is_early=False,
    ),
)
OTHER = InstallerError("other", "", "the installer failed", "Fix the reported problem, then {again}.", is_early=False)
BY_KIND = {error.kind: error for error in (*ERRORS, OTHER)}


def diagnose(output: str, operation: Operation, where: str = "") -> Diagnosis:
    """Return the first kind of the table that the output shows. `where`: a clause such as " at https://…"."""
    for error in ERRORS:
        matches = list(re.finditer(error.pattern, output, re.IGNORECASE))
        if matches:
            groups = {name: text for name, text in matches[-1].groupdict().items() if text}
            return _diagnosis(error, operation, _line_at(output, matches[-1].start()), where, groups)
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "error:"))] or lines or ["no output"]
    return _diagnosis(OTHER, operation, errors[-1], where, {})


def diagnosis_of(kind: str, operation: Operation) -> Diagnosis:
    """Return the texts of a kind that was recognised in another way, such as by an exception."""
    return _diagnosis(BY_KIND[kind], operation, "", "", {})


def without_credentials(text: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return re.sub(r"//[^/\s]+@", "//", text)


def _diagnosis(
    error: InstallerError, operation: Operation, line: str, where: str, groups: Mapping[str, str]
) -> Diagnosis:
    status = next((text for name, text in groups.items() if name in ("pip", "index", "code", "uv", "pip_401")), "404")
    fields = {
        "status": status,
        **groups,
        "where": where,
        "again": operation.again,
        "Again": operation.again[:1].upper() + operation.again[1:],
        "source": operation.source,
        "package": operation.package,
        "index_setting": operation.index_setting,
        "certificate_setting": operation.certificate_setting,
    }
    remedy = operation.remedies.get(error.kind) or error.remedy.format(**fields)
    if error.is_source and operation.alternative:
        remedy = f"{remedy} {operation.alternative}"
    return Diagnosis(error.kind, error.reason.format(**fields), remedy, _shorten(line), error.is_early)


def _line_at(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : len(text) if end < 0 else end]


def _shorten(line: str) -> str:
    """Return the cause within a line of pip: the innermost exception of a retry, without the object's address."""
    cause = re.sub(r"^(ERROR|WARNING):\s*", "", line.strip())
    inner = re.search(r"connection broken by '?\"?\w+\((.*)\)'?\"?: /", cause)
    if inner:
        cause = re.sub(r"^[\"']?<[^>]*>: |^[\"']|[\"']$", "", inner[1])
    cause = without_credentials(cause)
    return cause if len(cause) <= 300 else cause[:297] + "..."
