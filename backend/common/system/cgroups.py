"""Files with the limits and counts of a process's cgroup and of those above it, version 1 and 2."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from backend.common.bounded_reads import text_of

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def file(pid: int | str, version_2: str, controller: str, version_1: str) -> Path | None:
    """Return the file in the cgroup of a process, or else in the next one above; None if there is none."""
    return next(iter(files(pid, version_2, controller, version_1)), None)


def files(pid: int | str, version_2: str, controller: str, version_1: str) -> list[Path]:
    """Return the files in the cgroup of a process (`self` is this process) and in all above it, the innermost first.

    `version_2`, `version_1`: its name in either version. A limit of any of them applies. In a container the cgroup is
    the root of the mount, whatever the path in /proc is.
    """
    for line in read(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            root, name = ROOT, version_2
        elif controller in controllers.split(","):
            root, name = ROOT / controller, version_1
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        levels = (inner, *inner.parents) if ".." not in inner.parts else (PurePosixPath(),)
        if found := [file for level in levels if (file := root / level / name).exists()]:
            return found
    return []


def read(path: Path | None) -> str:
    """Return the text of a small file, empty if it cannot be read or does not answer."""
    return text_of(path) if path else ""
