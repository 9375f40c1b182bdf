"""What uv's last words mean: the one line that tells, and what to do about it. The words are those of uv 0.13."""

from __future__ import annotations

import re

from backend.child.download.errors import CERTIFICATE, Refused

ENDED = "uv was ended by "  # and the signal's name
_AGAIN = "what came so far is kept, so the next try goes on from there"
_SPACE = re.compile(r"no space left on device|os error 28\b|not enough space|disk quota exceeded", re.IGNORECASE)
_TLS = re.compile(r"invalid peer certificate|UnknownIssuer|certificate", re.IGNORECASE)
_PROXY = re.compile(r"tunnel error|proxy", re.IGNORECASE)
_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3}[^)]*)\)|status code (\d{3})", re.IGNORECASE)
_NETWORK = re.compile(
    r"Failed to fetch|Failed to download|error sending request|dns error|tcp connect error|timed out|connection closed"
    r"|broken pipe|IncompleteMessage|error decoding response body|Could not connect|request or response body error",
    re.IGNORECASE,
)
_HASH = re.compile(r"hash mismatch", re.IGNORECASE)
_NO_SOLUTION = re.compile(r"No solution found|was not found in the package registry|has no wheels", re.IGNORECASE)
_NO_PYTHON = re.compile(r"No interpreter found|python-build-standalone|No download found for request", re.IGNORECASE)
_DENIED = re.compile(r"permission denied|access is denied|read-only file system|os error (?:13|5|30)\b", re.IGNORECASE)
_ADDRESS = re.compile(r"Failed to (?:fetch|download)[^\n]*?(https?://[^\s`)]+|file://[^\s`)]+)")


def explain(said: str, doing: str, name: str) -> Refused:
    """The refusal for a uv that failed while `doing` something for the runtime `name`."""
    telling = telling_line(said)
    where = f" at {_without_secrets(found[1])}" if (found := _ADDRESS.search(said)) else ""
    if _SPACE.search(said):
        return Refused(
            "disk_full",
            f"The disk filled up while {doing}; what was unfinished is removed.",
            "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk, then install again.",
        )
    if ENDED in said:
        return failed(
            f"The installer failed while {doing}: {telling}.",
            f"Install again; {_AGAIN}. If it repeats, close other programs: the system ends one where memory is short.",
        )
    if _NO_PYTHON.search(said):
        return no_python(name, telling)
    if _HASH.search(said):
        return failed(
            f"What arrived is not what the package index announced ({telling}).",
            "Install again; if it repeats, a proxy or mirror in between changes files.",
        )
    if _NETWORK.search(said) or CERTIFICATE.search(said):
        return _network(said, doing, telling, where)
    if status := _STATUS.search(said):
        return failed(
            f"The package index answered {status[1] or status[2]} while {doing}{where}.",
            "Check the index and its credentials in pip's configuration (`pip config list`), then install again.",
        )
    if _NO_SOLUTION.search(said):
        return failed(
            f"The package index has no set of packages that fits this machine and Python: {telling}.",
            "See `pip config list` for the index in use; update Touchstone, or name an environment of your own under "
            f"`runtimes: {{{name}: {{python: …}}}}` in config.yaml.",
        )
    if _DENIED.search(said):
        return failed(
            f"A file could not be written while {doing}: {telling}.",
            "Make the data folder writable and close programs that use the runtime, then install again.",
        )
    return failed(f"The installer failed while {doing}: {telling}.", "Mend what it says, then install again.")


def no_python(name: str, telling: str, request: str = "") -> Refused:
    """The refusal where the Python that a runtime needs is not here and cannot be fetched."""
    version = request or "3.12"
    return failed(
        f"The runtime {name} needs Python {version}, which is not here and could not be fetched ({telling}).",
        f"Install it: `uv python install {version}`, or on Debian and Ubuntu `sudo apt-get install -y python{version} "
        f"python{version}-venv`, on Windows `winget install Python.Python.{version}`; then install again.",
    )


def failed(detail: str, remedy: str) -> Refused:
    """An installation that did not work, and changed nothing."""
    return Refused("runtime_failed", detail, remedy)


def unreachable(said: str) -> bool:
    """Whether an index was not reached at all."""
    return bool(_NETWORK.search(said)) and not _SPACE.search(said)


def telling_line(said: str) -> str:
    """What went wrong in one line: the innermost cause, or the first error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    if any(_NO_SOLUTION.search(line) for line in errors):
        chosen = (causes or errors)[0]
    else:
        chosen = (causes or errors or lines or ["it said nothing"])[-1]
    return _without_secrets(chosen).rstrip(".")[:400]


def _network(said: str, doing: str, telling: str, where: str) -> Refused:
    if _TLS.search(said):
        return failed(
            f"The certificate of the package index{where} could not be checked: {telling}.",
            "If your network inspects TLS, set SSL_CERT_FILE (or pip's `cert`) to the PEM file with its root "
            "certificate, then install again.",
        )
    if _PROXY.search(said):
        return failed(
            f"The proxy did not let the packages through{where}: {telling}.",
            "Correct HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT), or unset it, then install again.",
        )
    if status := _STATUS.search(said):
        return failed(
            f"The package index answered {status[1] or status[2]}{where}.",
            "Check the index and its credentials in pip's configuration (`pip config list`), then install again.",
        )
    return failed(
        f"The package index was not reached while {doing}{where}: {telling}.",
        f"Connect this machine (behind a proxy set HTTPS_PROXY), then install again; {_AGAIN}.",
    )


def _without_secrets(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)
