"""Explain the output of uv: the line that shows the cause, and the error to show for it."""

from __future__ import annotations

import re

from backend.child.download.errors import Refused
from backend.common.installer_errors import BY_KIND, Operation, diagnose, without_credentials

_ADDRESS = re.compile(r"Failed to (?:fetch|download)[^\n]*?(https?://[^\s`)]+|file://[^\s`)]+)")
_MIRROR = "set `runtimes: {{{name}: {{index: URL}}}}` in config.yaml."
_KEPT = "what was downloaded so far is kept"


def explain(output: str, doing: str, name: str, vendor: str = "") -> Refused:
    """Return the error for a uv that failed while `doing` something for the runtime `name`.

    `vendor`: optional, the URL of the vendor's index that was used.
    """
    line = telling_line(output)
    address = _ADDRESS.search(output)
    operation = Operation(
        again="install again",
        package="set of packages",
        certificate_setting="SSL_CERT_FILE (or pip's `cert`)",
        alternative=vendor and f"For a mirror of {without_credentials(vendor)} {_MIRROR.format(name=name)}",
        remedies={
            "network": f"Connect this machine (behind a proxy set HTTPS_PROXY), then install again; {_KEPT}.",
            "no_match": "Check the index (`pip config list`), try a newer Touchstone, or name your own environment: "
            f"`runtimes: {{{name}: {{python: …}}}}` in config.yaml.",
        },
    )
    diagnosis = diagnose(output, operation, f" at {without_credentials(address[1])}" if address else "")
    if diagnosis.kind == "no_python":
        return no_python(name, line)
    if diagnosis.kind == "disk_full":
        detail = f"The disk filled up while {doing}; the partial runtime is deleted."
        return Refused("disk_full", detail, diagnosis.remedy)
    reason = line if diagnosis.kind == "other" else f"{diagnosis.reason} ({line})"
    return failed(f"The installer failed while {doing}: {reason}.", diagnosis.remedy)


def no_python(name: str, line: str, request: str = "") -> Refused:
    """Return the error for a Python that cannot be fetched. `request`: its version; default: 3.12."""
    version = request or "3.12"
    return failed(
        f"The runtime {name} needs Python {version}, which is not installed and could not be fetched ({line}).",
        f"Install it: `uv python install {version}`, or on Debian and Ubuntu `sudo apt-get install -y python{version} "
        f"python{version}-venv`, on Windows `winget install Python.Python.{version}`; then install again.",
    )


def failed(detail: str, remedy: str) -> Refused:
    """Return the error for an installation that failed and left no environment."""
    return Refused("runtime_failed", detail, remedy)


def is_unreachable(output: str) -> bool:
    """Return whether uv could not reach an index."""
    pattern = re.compile(BY_KIND["network"].pattern, re.IGNORECASE)
    return bool(pattern.search(output)) and diagnose(output, Operation(again="")).kind != "disk_full"


def telling_line(output: str) -> str:
    """Return the line that shows the cause: the innermost cause, or the first where no set of packages was found."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    if any(re.search(BY_KIND["no_match"].pattern, line, re.IGNORECASE) for line in errors):
        chosen = (causes or errors)[0]
    else:
        chosen = (causes or errors or lines or ["no output"])[-1]
    return without_credentials(chosen).rstrip(".")[:400]
