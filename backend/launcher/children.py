"""Runs a helper process to its end, and ends it when the launcher itself is interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

GOOD_BYE_S = 5.0


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    hear: Callable[[str], None] | None = None,
) -> int:
    """The exit code. stdout goes to our stderr, the place for progress; `hear` gets stderr line by line, if given."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE if hear else None,
        env=environment,
        text=True,
        errors="replace",
        # A group of its own, so that its children can be ended with it; what the launcher marked as inheritable (its
        # lock) stays open, so that a helper that outlives a killed launcher still keeps the next one waiting.
        process_group=None if sys.platform == "win32" else 0,
        close_fds=sys.platform == "win32",
    )
    try:
        if hear and process.stderr:
            for line in process.stderr:
                hear(line.rstrip())
        return process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        if process.stderr:
            process.stderr.close()


def _end(process: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GOOD_BYE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
