"""Installs requirement files with pip, showing its progress and translating its failures."""

import os
from collections.abc import Sequence
from pathlib import Path

from backend.cli.launcher import subprocesses
from backend.cli.launcher.console import SetupFailed, interactive, say
from backend.cli.launcher.pip_errors import diagnose

# Variables of pip that would put packages elsewhere, or leave some out.
ELSEWHERE = {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "PYTHON", "NO_DEPS", "DRY_RUN", "NO_BINARY")}


KILLED = (-9, 137)


class InstallFailed(SetupFailed):
    """pip gave up. `early` tells that the environment is as it was before."""

    def __init__(self, detail: str, remedy: str, early: bool) -> None:
        super().__init__(detail, remedy)
        self.early = early


def install(python: Path, requirements: Sequence[Path]) -> None:
    """Lets the environment's pip install what the files name. Raises InstallFailed."""
    # Wheels only: a missing one is told in a sentence, where a compiler's complaint would fill the screen.
    command = [str(python), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary", ":all:"]
    if not interactive():
        command.append("--quiet")  # without a terminal pip's progress is a hundred lines of log
    for file in requirements:
        command += ["--requirement", str(file)]
    kept = {name: value for name, value in os.environ.items() if name.upper() not in ELSEWHERE}
    environment = {"PIP_RETRIES": "2", **kept, "PIP_USER": "0"}  # PIP_USER=1 is refused inside an environment
    lines: list[str] = []

    def hear(line: str) -> None:
        if "Retrying" in line and not any("Retrying" in earlier for earlier in lines):
            say("The package index does not answer; trying again ...")
        lines.append(line)

    code = subprocesses.run(command, environment, hear)
    if code in KILLED:
        raise InstallFailed(
            "The installation was killed, mostly because the machine had no memory left.",
            "Close other programs, or give this container or WSL (memory= in .wslconfig) more, and start again.",
            early=False,
        )
    if code:
        cause, telling = diagnose(lines)
        raise InstallFailed(f"{cause.detail}: {telling}", cause.remedy, cause.early)
