"""What a command wrote, passed on as it comes, with the part kept that tells why it failed."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

KEPT_LINES = 20_000
SHOWN_LINES = 60
LINGER_S = 5.0  # for what is still in the pipe; a process that a test left behind may hold it open for good
_FAILURES = re.compile(r"=+ (FAILURES|ERRORS) =+")  # of pytest; below it each failure begins with its name
_NAME = re.compile(r"_{3,} .+ _{3,}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], out: int, limit_s: float
) -> tuple[int, list[str]]:
    """The exit code, and what it wrote; both streams go to the file number `out` meanwhile. Raises TimeoutExpired."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines: list[str] = []
    assert process.stdout
    reader = threading.Thread(target=_pass_on, args=(process.stdout, out, lines), daemon=True)
    reader.start()
    try:
        code = process.wait(limit_s)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        reader.join(LINGER_S)
    return code, lines


def _pass_on(stream: IO[bytes], out: int, lines: list[str]) -> None:
    with stream:
        for line in stream:
            os.write(out, line)
            lines.append(_COLOUR.sub("", line.decode("utf-8", "replace")).rstrip())
            del lines[:-KEPT_LINES]


def first_failure(lines: Sequence[str]) -> list[str]:
    """Of pytest's output the first failure; of anything else the end."""
    heads = (number for number, line in enumerate(lines) if _FAILURES.fullmatch(line))
    begin = next(heads, None)
    if begin is None:
        return list(lines[-SHOWN_LINES:])
    names = [number for number in range(begin + 1, len(lines)) if _NAME.fullmatch(lines[number])]
    ends = [*names[1:], *(number for number in range(begin + 1, len(lines)) if lines[number].startswith("====="))]
    first = list(lines[begin + 1 : min(ends, default=len(lines))])
    # Where it is long, what was asserted stands at its end.
    return first if len(first) <= SHOWN_LINES else [first[0], "...", *first[-SHOWN_LINES + 2 :]]
