"""Files with the limits and counts of a process's cgroup, version 1 and 2."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def file(pid: int | str, version_2: str, controller: str, version_1: str) -> Path | None:
    """Return the file in the cgroup of a process (`self` is this process), None if there is none.

    `version_2`, `version_1`: its name in either version. In a container the cgroup is the root of the mount, whatever
    the path in /proc is.
    """
    for line in read(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders, name = (ROOT / path.lstrip("/"), ROOT), version_2
        elif controller in controllers.split(","):
            folders, name = (ROOT / controller / path.lstrip("/"), ROOT / controller), version_1
        else:
            continue
        for folder in folders:
            if (folder / name).exists():
                return folder / name
    return None


def read(path: Path | None) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        return path.read_text().strip() if path else ""
    except OSError:
        return ""
