"""Runs a helper process to its end, and ends it when the launcher itself is interrupted."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GOOD_BYE_S = 5.0
SIGNAL_S = 0.5


def wait(process: subprocess.Popen[Any]) -> int:
    """The exit code, awaited so that signals are heard meanwhile.

    Python handles a signal between two steps of the main thread. One that comes just before a wait in the kernel, or
    to another thread, would be handled only when that wait is over; on Windows, every one would.
    """
    ended = threading.Event()

    def watch() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    while not ended.wait(SIGNAL_S):
        pass
    return process.wait()


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
        return wait(process)
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
