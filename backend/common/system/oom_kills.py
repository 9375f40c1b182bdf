"""The kernel's counts of out-of-memory kills, in a process's cgroup and on the system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.common.system import cgroups


@dataclass(frozen=True)
class OomWatch:
    """The counts at the start of the watch, and the file with the count of the process's cgroup."""

    file: Path | None
    in_cgroup: int | None
    on_system: int | None

    def cause(self) -> str | None:
        """Return which memory has run out since the start, in words; None if none has or if it is unknown."""
        if self.file and self.in_cgroup is not None and (_kills(self.file) or 0) > self.in_cgroup:
            return "the memory limit of its cgroup (container or service)"
        if self.on_system is not None and (_kills(cgroups.PROC / "vmstat") or 0) > self.on_system:
            return "the machine's memory"
        return None


def watch(pid: int) -> OomWatch:
    """Start to watch a running process."""
    file = cgroups.file(pid, "memory.events", "memory", "memory.oom_control")
    return OomWatch(file, _kills(file) if file else None, _kills(cgroups.PROC / "vmstat"))


def _kills(file: Path) -> int | None:
    for line in cgroups.read(file).splitlines():
        key, _, count = line.partition(" ")
        if key == "oom_kill" and count.strip().isdigit():
            return int(count)
    return None
