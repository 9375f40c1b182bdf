"""Access to the inspected machine: its files, the output of its commands, this user's permissions.

The rest of this package uses only this module, so tests can replace it by another machine's captured files and output.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from backend.common.bounded_reads import TEXT_LIMIT, bounded_read, names_in, paths_without_answer, text_of
from backend.common.system import resources

__all__ = ["Answer", "Host", "link_name", "names_in", "number", "remembered", "run_command", "silent_files", "text_of"]

COMMAND_LIMIT_S = 10.0
_DEATH_S = 0.2
# Without a window (CREATE_NO_WINDOW), or in a new session, whose processes are killed together.
_DETACHED: dict[str, Any] = {"creationflags": 0x08000000} if sys.platform == "win32" else {"start_new_session": True}
_FAILURE = re.compile(
    r"\b(fail(ed|ure|s)?|errors?|unable|cannot|can't|could ?n[o']t|mismatch|lost|denied|refused|not found|no devices|"
    r"insufficient|not permitted|no permission|has fallen|blocked|missing|invalid)\b|[a-z]error:",
    re.IGNORECASE,
)
_HINT = re.compile(r"(please|see|if|try|hint|note|make sure|check|visit|for (more|details)|refer)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """The output of a command. `trouble`: optional, why it failed: not found, timed out, exit code."""

    text: str = ""
    trouble: str | None = None


Run = Callable[[Sequence[str], float], Answer]


def run_command(command: Sequence[str], limit_s: float) -> Answer:
    """Run a command with a timeout of `limit_s` seconds. If it fails, the line with the cause is part of `trouble`.

    After the timeout the command is killed, but not waited for: a process inside a hung driver ends when the driver
    does. What such a command, or a daemon that it started, printed until then is part of the answer.
    """
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **_DETACHED
        )
    except (OSError, ValueError) as error:
        return Answer(trouble=f"{command[0]} cannot be run ({error})")
    outputs = [_Output(stream) for stream in (process.stdout, process.stderr) if stream]
    ends_at = time.monotonic() + limit_s
    for output in outputs:
        output.join(max(0.0, ends_at - time.monotonic()))
    with contextlib.suppress(subprocess.TimeoutExpired):  # it may have closed its output long before its end
        process.wait(max(0.0 if any(output.is_alive() for output in outputs) else 0.1, ends_at - time.monotonic()))
    code = process.poll()
    if code is None or any(output.is_alive() for output in outputs):
        _kill_group(process)
    printed, complaints = (decoded(bytes(output.content)) for output in outputs)
    if code is None:
        return Answer(printed, f"{command[0]} timed out after {limit_s:g} s")
    if code:
        line = telling_line(f"{complaints}\n{printed}")
        return Answer(printed, f"{command[0]} failed with code {code}" + (f": {line}" if line else ""))
    return Answer(printed)


class _Output(threading.Thread):
    """Reads one output of a command, up to the limit. What follows is discarded, so that the command can end."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.content = bytearray()
        self._stream = stream
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while part := os.read(self._stream.fileno(), 1 << 16):
                self.content += part[: TEXT_LIMIT - len(self.content)]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and what it started. Its end is awaited for a moment only."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DEATH_S)


def decoded(output: bytes) -> str:
    """Return a command's output as text: UTF-8, or UTF-16 as some programs of Windows write it, without a mark."""
    if output.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return output.decode("utf-16", "replace")
    if output[1:2] == b"\0" and output[3:4] in (b"\0", b""):
        return output.decode("utf-16-le", "replace")
    return output.decode("utf-8-sig", "replace")


def telling_line(text: str) -> str:
    """Return the line of an error's text that names the failure, else the last line; at most 300 characters.

    A version, a hint or an address may follow that line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    facts = [line for line in lines if not _HINT.match(line)]
    failures = [line for line in facts if _FAILURE.search(line)]
    return (failures or facts or lines or [""])[-1][:300]


def remembered(run: Run) -> Run:
    """Return a function that runs each command once and caches its answer."""
    answers: dict[tuple[str, ...], Answer] = {}

    def asked(command: Sequence[str], limit_s: float) -> Answer:
        key = tuple(command)
        if key not in answers:
            answers[key] = run(command, limit_s)
        return answers[key]

    return asked


def _group_of(path: Path) -> str | None:
    """Return the group that owns a file: its name, or its number if it has none; None if unknown."""
    try:
        number = path.stat().st_gid
    except OSError:
        return None
    if sys.platform == "win32":
        return None
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


@dataclass(frozen=True)
class Host:
    """One machine. Default: this machine."""

    root: Path = Path("/")
    platform: str = sys.platform
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command
    may_use: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK)
    group_of: Callable[[Path], str | None] = _group_of
    memory_bytes: Callable[[], int | None] = resources.memory_bytes
    usable_threads: Callable[[], int] = resources.usable_threads

    def path(self, *parts: str) -> Path:
        """Return a path below the root."""
        return self.root.joinpath(*(part.lstrip("/") for part in parts))

    def read(self, *parts: str) -> str:
        """Return the text of a small file, empty if it cannot be read."""
        return text_of(self.path(*parts))

    def shown(self, path: Path) -> str:
        """Return a path as it is on the machine itself."""
        return "/" + path.relative_to(self.root).as_posix()


def silent_files(host: Host) -> list[Path]:
    """Return the machine's files whose reads have not returned."""
    return [path for path in paths_without_answer() if path.is_relative_to(host.root)]


def link_name(path: Path) -> str | None:
    """Return the last part of a link's target, such as the driver of a device; None if it is not a link."""
    try:
        return bounded_read(path, path.readlink).name
    except OSError:
        return None


def number(text: str, base: int = 10) -> int | None:
    """Parse a non-negative integer. Returns None for other text."""
    try:
        value = int(text.strip(), base)
    except ValueError:
        return None
    return value if value >= 0 else None
