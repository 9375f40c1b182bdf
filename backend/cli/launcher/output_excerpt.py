"""Runs a command of a test stage, copies its output to the console and a file, and keeps an excerpt of its failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

KEPT_LINES = 20_000
SHOWN_LINES = 60
DRAIN_TIMEOUT_S = 5.0  # for output still in the pipe; a process that a test left behind may hold it open forever
TERMINATE_TIMEOUT_S = 10.0
_FAILURES = re.compile(r"=+ (FAILURES|ERRORS) =+")  # pytest's heading; below it each failure starts with its name
_NAME = re.compile(r"_{3,} .+ _{3,}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], out: int, limit_s: float, log: Path | None = None
) -> tuple[int, list[str]]:
    """Run a command and return its exit code and its lines; stdout and stderr are joined.

    The output also goes to the file number `out` and is appended to the file `log`. Raises TimeoutExpired after
    `limit_s`; the command's process group is terminated then.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=None if sys.platform == "win32" else 0,
    )
    lines: list[str] = []
    assert process.stdout
    reader = threading.Thread(target=_copy, args=(process.stdout, out, lines, log), daemon=True)
    reader.start()
    try:
        code = process.wait(limit_s)
    except BaseException:
        _terminate(process)
        raise
    finally:
        reader.join(DRAIN_TIMEOUT_S)
    return code, lines


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process group, so that pytest prints what failed so far; kill it after a timeout."""
    if sys.platform == "win32":
        process.kill()
        process.wait()
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(TERMINATE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _copy(stream: IO[bytes], out: int, lines: list[str], log: Path | None) -> None:
    with stream, (log or Path(os.devnull)).open("ab") as file:
        for line in stream:
            os.write(out, line)
            file.write(line)
            file.flush()
            lines.append(_COLOUR.sub("", line.decode("utf-8", "replace")).rstrip())
            del lines[:-KEPT_LINES]


def first_failure(lines: Sequence[str]) -> list[str]:
    """Return the first failure of pytest's output; of any other output its end."""
    headings = (number for number, line in enumerate(lines) if _FAILURES.fullmatch(line))
    begin = next(headings, None)
    if begin is None:
        return list(lines[-SHOWN_LINES:])
    names = [number for number in range(begin + 1, len(lines)) if _NAME.fullmatch(lines[number])]
    ends = [*names[1:], *(number for number in range(begin + 1, len(lines)) if lines[number].startswith("====="))]
    first = list(lines[begin + 1 : min(ends, default=len(lines))])
    # The assertion is at the end of a long failure.
    return first if len(first) <= SHOWN_LINES else [first[0], "...", *first[-SHOWN_LINES + 2 :]]
