"""Runs a step in the environment for conversions, and says in words why it failed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from backend.child import process
from backend.common.errors import Configuration, DiskFull, TouchstoneError


def call(command: list[str], failing: str, env: dict[str, str] | None = None) -> str:
    """Runs a program that ends with this one; returns what it printed. Raises Configuration, DiskFull."""
    started: Any = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        preexec_fn=process.die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (no threads hold locks)
    )
    printed, told = started.communicate()
    if started.returncode:
        raise _failure(failing, told or printed)
    return str(printed)


def _failure(failing: str, told: str) -> TouchstoneError:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines or ["it said nothing"]
    if "No space left" in told:
        return DiskFull(f"The disk is full: {failing}.", "Free some space, then start again: it goes on.")
    return Configuration(
        f"{failing[0].upper()}{failing[1:]}: {telling[-1][:500]}",
        "Mend what it says, then start again: it goes on. `runtimes: {convert: {python: …}}` in config.yaml names "
        "another environment.",
    )
