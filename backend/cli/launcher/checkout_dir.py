"""The folder that the repository lies in: whether an environment can be made there, and how fast its disk is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from backend.cli.launcher.console import SetupFailed

NEEDED_BYTES = 1_000_000_000  # .venv with its packages is half of that, and pip needs as much while it unpacks
WINDOWS_PATH_LIMIT = 259
LONGEST_BELOW = 165  # characters of the longest path inside .venv, with the separator
WINDOWS_DISKS = ("9p", "drvfs", "v9fs", "virtiofs")
SAMPLE_FILES = 40


def refuse_unusable(folder: Path) -> None:
    """Raises SetupFailed if no environment can be made in `folder`, in words that say what to do."""
    if os.pathsep in str(folder):
        raise SetupFailed(
            f"The folder's path {folder} holds {os.pathsep!r}, with which no Python environment can be made.",
            "Rename or move the folder and start again.",
        )
    if sys.platform == "win32":
        if len(str(folder)) + LONGEST_BELOW > WINDOWS_PATH_LIMIT and not long_paths_allowed():
            raise too_deep(folder)
    else:
        flags = os.statvfs(folder).f_flag
        if flags & os.ST_RDONLY or not os.access(folder, os.W_OK):
            raise unwritable(folder)
        if flags & getattr(os, "ST_NOEXEC", 0):
            raise SetupFailed(
                f"{folder} lies on a disk mounted with noexec, from which no library can be loaded.",
                "Copy the repository to another disk, such as your home folder, and start again there.",
            )
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise full(folder, free)


def unwritable(folder: Path) -> SetupFailed:
    """Nothing can be made there: read-only, or somebody else's."""
    whose = _whose(folder)
    remedy = "Copy the repository to a folder that you own, and start again there."
    if whose.endswith(" root"):
        remedy = f"After a start with sudo: sudo chown -R $(id -un) {folder.parent if folder.is_file() else folder}"
    return SetupFailed(f"Nothing can be written to {folder}{whose}.", remedy)


def full(folder: Path, free: int) -> SetupFailed:
    """Not enough space for the packages."""
    return SetupFailed(
        f"The disk is full: {free / 1e6:.0f} MB are free at {folder}, and {NEEDED_BYTES / 1e6:.0f} MB are needed.",
        "Free some space, or copy the repository to another disk, and start again.",
    )


def too_deep(folder: Path) -> SetupFailed:
    """Windows would refuse the packages' longest paths."""
    return SetupFailed(
        f"The folder's path has {len(str(folder))} characters; with the packages' own, Windows' limit is passed.",
        r"Move the folder to a short path such as C:\ts, or allow long paths (docs/windows.md), and start again.",
    )


def long_paths_allowed() -> bool:
    """Windows' own setting; False where it cannot be read."""
    if sys.platform != "win32":
        return True
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    except OSError:
        return False


def _whose(path: Path) -> str:
    if sys.platform == "win32" or path.stat().st_uid == os.geteuid():
        return ""
    import pwd

    try:
        owner = pwd.getpwuid(path.stat().st_uid).pw_name
    except KeyError:
        owner = f"user {path.stat().st_uid}"
    return f", which belongs to {owner}"


def on_windows_disk(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the folder lies on Windows' disk, seen from inside WSL."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    best, kind = "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].encode().decode("unicode_escape") if len(fields.split()) > 4 else ""
        if len(point) >= len(best) and folder.is_relative_to(point or "/nowhere"):
            best, kind = point, rest.split(" ")[0]
    return kind in WINDOWS_DISKS


def slowness(folder: Path, native: Path) -> list[str]:
    """Measured: how long small files take there and in a folder of Linux, and the way to the faster one."""
    here, there = _sample_s(folder), _sample_s(native)
    return [
        f"This folder lies on Windows' disk: {SAMPLE_FILES} small files took {here:.2f} s here and {there:.2f} s in "
        f"{native}, and an environment has thousands.",
        f"Faster: cp -r {folder} ~/touchstone && cd ~/touchstone && ./launch_wsl.sh",
    ]


def _sample_s(folder: Path) -> float:
    sample = folder / f".touchstone-sample-{os.getpid()}"
    began = time.monotonic()
    try:
        sample.mkdir()
        for number in range(SAMPLE_FILES):
            (sample / str(number)).write_bytes(b"x" * 2000)
        for number in range(SAMPLE_FILES):
            (sample / str(number)).read_bytes()
    finally:
        shutil.rmtree(sample, ignore_errors=True)
    return time.monotonic() - began
