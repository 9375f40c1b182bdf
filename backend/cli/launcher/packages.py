"""Install requirement files with pip, show its progress and explain its failures."""

import os
import platform
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from backend.cli.launcher import subprocesses
from backend.cli.launcher.console import SetupFailed, interactive, say
from backend.cli.launcher.interpreter import supported_range
from backend.common.installer_errors import BEHIND_A_PROXY, Diagnosis, Operation, diagnose

# Variables of pip that would install packages elsewhere, or leave some out.
EXCLUDED_VARIABLES = {
    f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "PYTHON", "NO_DEPS", "DRY_RUN", "NO_BINARY")
}
KILLED = (-9, 137)


class InstallFailed(SetupFailed):
    """pip failed. `early`: the environment is unchanged."""

    def __init__(self, detail: str, remedy: str, early: bool) -> None:
        super().__init__(detail, remedy)
        self.early = early


def install(python: Path, requirements: Sequence[Path], constraints: Sequence[Path] = ()) -> None:
    """Install what the requirement files list, with the pip of the environment of `python`. Raises InstallFailed.

    `constraints`: files with the versions to install. They are left out if the package index lacks one of them.
    """
    # Wheels only: a missing wheel is one sentence, while the errors of a compiler would fill the screen.
    command = [str(python), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary", ":all:"]
    if not interactive():
        command.append("--quiet")  # without a terminal pip's progress is a hundred lines of log
    for file in requirements:
        command += ["--requirement", str(file)]
    pinned = [word for file in constraints for word in ("--constraint", str(file))]
    diagnosis = _run(command + pinned)
    if diagnosis and pinned and diagnosis.kind in ("versions", "no_match"):
        say("The package index lacks a version of constraints.txt; installing the newest that fit requirements.txt ...")
        diagnosis = _run(command)
    if diagnosis:
        reason = diagnosis.reason[0].upper() + diagnosis.reason[1:]
        raise InstallFailed(f"{reason}: {diagnosis.line}", diagnosis.remedy, diagnosis.is_early)


def _run(command: list[str]) -> Diagnosis | None:
    """Run pip; return the diagnosis if it fails. Raises InstallFailed if it was killed."""
    kept = {name: value for name, value in os.environ.items() if name.upper() not in EXCLUDED_VARIABLES}
    environment = {"PIP_RETRIES": "2", **kept, "PIP_USER": "0"}  # PIP_USER=1 is refused inside an environment
    lines: list[str] = []

    def keep_line(line: str) -> None:
        if "Retrying" in line and not any("Retrying" in earlier for earlier in lines):
            say("The package index does not answer; retrying ...")
        lines.append(line)

    code = subprocesses.run(command, environment, keep_line)
    if code in KILLED:
        raise InstallFailed(
            "The installation was killed, most likely because the machine ran out of memory.",
            "Close other programs, or give this container or WSL (memory= in .wslconfig) more memory, then start "
            "again.",
            early=False,
        )
    return diagnose("\n".join(lines), FIRST_START) if code else None


def _supported_systems() -> str:
    if sys.platform == "linux" and "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return "This Linux has the C library musl (Alpine); use Debian, Ubuntu or Fedora, or a container of these."
    oldest, newest, _ = supported_range()
    return (
        f"No ready-made package fits Python {platform.python_version()} on {sys.platform} {platform.machine()}; "
        f"use a 64-bit Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]} (`uv python install 3.13` gets one) "
        "on Windows, Linux (glibc 2.28 or newer) or macOS, and start again."
    )


_CONNECT = f"Connect this machine, then start again; later starts need no network. {BEHIND_A_PROXY}"

FIRST_START = Operation(
    again="start again",
    index_setting="PIP_INDEX_URL",
    certificate_setting="PIP_CERT and SSL_CERT_FILE",
    remedies={
        "disk_full": "Free about 1 GB, then start again.",
        "damaged": "Start again. If it repeats, clear pip's cache (`.venv/bin/python -m pip cache purge`), and check "
        "whether a proxy or mirror changes files.",
        "dns": _CONNECT,
        "network": _CONNECT,
        "versions": _supported_systems(),
        "empty_index": f"Check the network and PIP_INDEX_URL. {_supported_systems()}",
        "no_match": _supported_systems(),
        "denied": "Keep the repository in a folder that you own, close programs that use its .venv, then start again.",
    },
)
