"""The kernel's counts of processes ended for want of memory: in one process's cgroup, and on the whole system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Watch:
    """The counts when the watch began, and the file of the cgroup that the process was in."""

    file: Path | None
    in_cgroup: int | None
    on_system: int | None

    def cause(self) -> str | None:
        """Whose memory has run out since, in words; None if nobody's, or if the system does not tell."""
        if self.file and self.in_cgroup is not None and (_kills(self.file) or 0) > self.in_cgroup:
            return "the memory limit of its cgroup (container or service)"
        if self.on_system is not None and (_kills(_PROC / "vmstat") or 0) > self.on_system:
            return "the machine's memory"
        return None


def watch(pid: int) -> Watch:
    """Begins to watch a living process."""
    file = _counting_file(pid)
    return Watch(file, _kills(file) if file else None, _kills(_PROC / "vmstat"))


def _counting_file(pid: int) -> Path | None:
    for line in _read(_PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if controllers == "" and (_CGROUPS / inside / "memory.events").exists():  # version 2
            return _CGROUPS / inside / "memory.events"
        if "memory" in controllers.split(","):
            # A container sees its own cgroup as the root of the mount, whatever the path says.
            for folder in (_CGROUPS / "memory" / inside, _CGROUPS / "memory"):
                if (folder / "memory.oom_control").exists():
                    return folder / "memory.oom_control"
    return None


def _kills(file: Path) -> int | None:
    for line in _read(file).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
