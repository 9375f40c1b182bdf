"""What pip's last words mean: the one line that tells, and what to do about it."""

import platform
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

WHEN_BEHIND_A_PROXY = "Behind a proxy set HTTPS_PROXY=http://HOST:PORT first."


@dataclass(frozen=True)
class Cause:
    """One family of failures, recognised by its words; `early` ones happen before pip changes anything."""

    words: str
    detail: str
    remedy: str
    early: bool = True


def _unavailable() -> str:
    if sys.platform == "linux" and "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return "This Linux has the C library musl (Alpine); use Debian, Ubuntu or Fedora, or a container of these."
    return (
        f"No ready-made package fits Python {platform.python_version()} on {sys.platform} {platform.machine()}; "
        "use a 64-bit Python 3.11, 3.12 or 3.13 on Windows, Linux (glibc 2.28 or newer) or macOS, and start again."
    )


CAUSES = (
    Cause(
        r"certificate is not yet valid|certificate has expired",
        "The package index's certificate is not valid at the moment that this machine's clock shows",
        "Set the clock (`date` shows it; under WSL `sudo hwclock -s` after Windows slept), and start again.",
    ),
    Cause(
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate verify failed|TLS CA certificate bundle",
        "The package index's certificate could not be checked",
        "If your network inspects TLS, set PIP_CERT and SSL_CERT_FILE to the file that holds its CA certificate (PEM), "
        "and start again.",
    ),
    Cause(
        r"ProxyError|Cannot connect to proxy|Tunnel connection failed|407 Proxy",
        "The proxy did not let the packages through",
        "Correct HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT), or unset it, and start again.",
    ),
    Cause(
        r"not a trusted or secure host",
        "pip is set to an index without TLS, which it does not trust",
        "Set PIP_INDEX_URL to its https address, or PIP_TRUSTED_HOST to its name if you do trust it, and start again.",
    ),
    Cause(
        r"\b40[13] (Client )?Error|Credentials not correct",
        "The package index does not let this machine in",
        "Put what it asks for into PIP_INDEX_URL (https://USER:PASSWORD@HOST/simple) or a netrc file, and start again.",
    ),
    Cause(
        r"\b(404 Client|5\d\d Server) Error|HTTP error (404|5\d\d)",
        "The package index did not give a package out",
        "Try again later, or correct PIP_INDEX_URL.",
    ),
    Cause(
        r"DO NOT MATCH THE HASHES|BadZipFile|invalid wheel|hash mismatch",
        "A package arrived damaged, or was changed on its way",
        "Start again; if it repeats, clear what pip kept (`.venv/bin/python -m pip cache purge`), and ask your proxy.",
    ),
    Cause(
        r"No space left on device|\[Errno 28\]|not enough space on the disk",
        "The disk is full",
        "Free about 1 GB and start again.",
        early=False,
    ),
    Cause(
        r"SOCKS support",
        "The proxy of the environment is a SOCKS proxy, which pip cannot use by itself",
        "Set HTTPS_PROXY to an HTTP proxy, or unset ALL_PROXY and HTTPS_PROXY, and start again.",
    ),
    Cause(
        r"No usable temporary directory",
        "There is no folder for temporary files that can be written to",
        "Set TMPDIR to a folder that you may write to, and start again.",
    ),
    Cause(
        r"filename or extension is too long|\[WinError 206\]|long path support|long-paths",
        "A path is longer than Windows allows",
        r"Move the folder to a short path such as C:\ts, or allow long paths (docs/windows.md), and start again.",
        early=False,
    ),
    Cause(
        r"--require-hashes",
        "pip is set to take packages by hash alone",
        "Unset PIP_REQUIRE_HASHES (or require-hashes in pip's configuration) for this start.",
    ),
    Cause(
        r"name resolution|Name or service not known|getaddrinfo failed|nodename nor servname|Network is unreachable"
        r"|No route to host|Connection refused|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout"
        r"|Read timed out|timed out|Connection aborted|Connection reset",
        "The first start needs the network, to fetch the packages, and it was not reached",
        f"Connect this machine and start again; later starts need no network. {WHEN_BEHIND_A_PROXY}",
    ),
    Cause(
        r"from versions: none",
        "The package index offered nothing at all: it was not reached, or has no package for this Python",
        f"Check the network and PIP_INDEX_URL. {_unavailable()}",
    ),
    Cause(
        r"No matching distribution|Could not find a version|not a supported wheel|ResolutionImpossible",
        "A package is not to be had for this Python",
        _unavailable(),
    ),
    Cause(
        r"Permission denied|\[Errno 13\]|Access is denied|Read-only file system",
        "A file could not be written",
        "Keep the repository in a folder that you own, close programs that use its .venv, and start again.",
        early=False,
    ),
)
OTHER = Cause("", "pip could not install the packages", "Mend what the line above names, and start again.", early=False)


def diagnose(lines: Sequence[str]) -> tuple[Cause, str]:
    """The cause and the last line that shows it, shortened to its telling part."""
    for cause in CAUSES:
        for line in reversed(lines):
            if re.search(cause.words, line):
                return cause, _shortened(line)
    errors = [line for line in lines if line.startswith("ERROR")] or [line for line in lines if line.strip()]
    return OTHER, _shortened(errors[-1]) if errors else "it said nothing"


def _shortened(line: str) -> str:
    telling = re.sub(r"^(ERROR|WARNING):\s*", "", line.strip())
    inner = re.search(r"connection broken by '?\"?\w+\((.*)\)'?\"?: /", telling)
    if inner:
        telling = re.sub(r"^[\"']?<[^>]*>: |^[\"']|[\"']$", "", inner[1])
    return telling if len(telling) <= 300 else telling[:297] + "..."
