"""Access to the inspected machine: its files, the output of its commands, this user's permissions.

The rest of this package uses only this module, so tests can replace it by another machine's captured files and output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.common.system import resources

COMMAND_LIMIT_S = 10.0
_TEXT_LIMIT = 8 << 20  # enough for /proc/cpuinfo with a thousand threads
_WINDOWLESS: dict[str, Any] = {"creationflags": 0x08000000} if sys.platform == "win32" else {}  # CREATE_NO_WINDOW


@dataclass(frozen=True)
class Answer:
    """The output of a command. `trouble`: optional, why it failed: not found, timed out, exit code."""

    text: str = ""
    trouble: str | None = None


Run = Callable[[Sequence[str], float], Answer]


def run_command(command: Sequence[str], limit_s: float) -> Answer:
    """Run a command with a timeout of `limit_s` seconds. If it fails, its stderr is part of `trouble`."""
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False, **_WINDOWLESS
        )
    except subprocess.TimeoutExpired:
        return Answer(trouble=f"{command[0]} timed out after {limit_s:g} s")
    except (OSError, ValueError) as error:
        return Answer(trouble=f"{command[0]} cannot be run ({error})")
    text = done.stdout[:_TEXT_LIMIT].decode("utf-8", "replace")
    if done.returncode:
        lines = (done.stderr[:_TEXT_LIMIT].decode("utf-8", "replace") + text).strip().splitlines()
        why = f": {lines[-1].strip()[:300]}" if lines else ""
        return Answer(text, f"{command[0]} failed with code {done.returncode}{why}")
    return Answer(text)


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


def text_of(path: Path) -> str:
    """Return the stripped text of a small file, empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_TEXT_LIMIT).decode("utf-8", "replace").strip(" \t\r\n\0")
    except OSError:
        return ""


def names_in(path: Path) -> list[str]:
    """Return the sorted entries of a folder, empty if there is no such folder."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str | None:
    """Return the last part of a link's target, such as the driver of a device; None if it is not a link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def number(text: str, base: int = 10) -> int | None:
    """Parse a non-negative integer. Returns None for other text."""
    try:
        value = int(text.strip(), base)
    except ValueError:
        return None
    return value if value >= 0 else None
