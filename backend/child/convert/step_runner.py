"""Run a conversion step in its environment, and explain its failure."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from backend.child import process
from backend.common.errors import Configuration, DiskFull, TouchstoneError


def run_step(command: list[str], failure: str, env: dict[str, str] | None = None) -> str:
    """Run a program that dies with this process; return its stdout. Raises Configuration, DiskFull.

    `failure`: the clause that starts the detail of the error.
    """
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
    stdout, stderr = started.communicate()
    if started.returncode:
        raise _explain(failure, stderr or stdout)
    return str(stdout)


def _explain(failure: str, output: str) -> TouchstoneError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
    if "No space left" in output:
        return DiskFull(f"The disk is full: {failure}.", "Free some space, then start again: the conversion resumes.")
    return Configuration(
        f"{failure[0].upper()}{failure[1:]}: {errors[-1][:500]}",
        "Fix the reported problem and retry: the conversion resumes. `runtimes: {convert: {python: …}}` in config.yaml "
        "sets another environment.",
    )
