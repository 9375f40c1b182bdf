"""Runs a subprocess to its end, and terminates it when the launcher is interrupted."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TERMINATE_TIMEOUT_S = 5.0
SIGNAL_POLL_S = 0.5


def wait(process: subprocess.Popen[Any]) -> int:
    """Wait for the process and return its exit code, handling signals meanwhile.

    Python runs signal handlers between two steps of the main thread. A signal that arrives just before a wait in the
    kernel, or in another thread, would be handled only after that wait; on Windows every signal would.
    """
    ended = threading.Event()

    def watch() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    while not ended.wait(SIGNAL_POLL_S):
        pass
    return process.wait()


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> int:
    """Run a command and return its exit code. Its stdout goes to our stderr.

    Optional callback: `on_line` gets its stderr line by line; default: it goes to our stderr.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE if on_line else None,
        env=environment,
        text=True,
        errors="replace",
        # A separate process group, so that its children are terminated with it. Files that the launcher marked as
        # inheritable (its lock) stay open: a subprocess that outlives a killed launcher keeps the next one waiting.
        process_group=None if sys.platform == "win32" else 0,
        close_fds=sys.platform == "win32",
    )
    try:
        if on_line and process.stderr:
            for line in process.stderr:
                on_line(line.rstrip())
        return wait(process)
    except BaseException:
        _terminate(process)
        raise
    finally:
        if process.stderr:
            process.stderr.close()


def _terminate(process: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(TERMINATE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
