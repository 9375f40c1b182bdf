"""The kernel's counts of processes ended for want of memory: in one process's cgroup, and on the whole system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.common.system import cgroups


@dataclass(frozen=True)
class OomWatch:
    """The counts when the watch began, and the file of the cgroup that the process was in."""

    file: Path | None
    in_cgroup: int | None
    on_system: int | None

    def cause(self) -> str | None:
        """Whose memory has run out since, in words; None if nobody's, or if the system does not tell."""
        if self.file and self.in_cgroup is not None and (_kills(self.file) or 0) > self.in_cgroup:
            return "the memory limit of its cgroup (container or service)"
        if self.on_system is not None and (_kills(cgroups.PROC / "vmstat") or 0) > self.on_system:
            return "the machine's memory"
        return None


def watch(pid: int) -> OomWatch:
    """Begins to watch a living process."""
    file = cgroups.file(pid, "memory.events", "memory", "memory.oom_control")
    return OomWatch(file, _kills(file) if file else None, _kills(cgroups.PROC / "vmstat"))


def _kills(file: Path) -> int | None:
    for line in cgroups.read(file).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None
