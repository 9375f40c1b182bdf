"""The processes of one run, found by a variable in their environment, which children inherit."""

from __future__ import annotations

import contextlib
import resource
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "CHAOS_RUN"


@dataclass(frozen=True)
class Process:
    """A process that lives; the moment of its start tells pids apart."""

    pid: int
    start: str
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`serve`, `run`, `probe`, `download`: the word that says which program it is."""
        return next((word for word in self.words if word in ("serve", "run", "probe", "download")), "other")

    @property
    def alive(self) -> bool:
        """Whether it is still there, and not just waited for."""
        with contextlib.suppress(OSError):
            fields = _stat(self.pid)
            return fields[19] == self.start and fields[0] != "Z"
        return False


def marked(run: str, *kinds: str) -> list[Process]:
    """The living processes of a run, of these kinds."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={run}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            words = tuple((folder / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            process = Process(int(folder.name), _stat(int(folder.name))[19], words)
            if process.alive and (not kinds or process.kind in kinds):
                found.append(process)
    return found


def gone(run: str, limit_s: float) -> list[Process]:
    """Waits until no process of the run lives; returns those that do after all."""
    end = time.monotonic() + limit_s
    while (left := marked(run)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def limit_memory(pid: int, more_bytes: int) -> None:
    """Lets a process map this much more than now, and nothing beyond. Raises OSError if it is gone."""
    limit = bytes_of(pid, "VmSize") + more_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def unlimit_memory(pid: int) -> None:
    """Takes the limit back. Raises OSError if the process is gone."""
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def bytes_of(pid: int, name: str) -> int:
    """A size in /proc/PID/status. Raises OSError if the process is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no {name}")  # it is about to end


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
