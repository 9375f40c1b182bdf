"""The repository's folder: whether an environment can be created there, and how fast its disk is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from backend.cli.launcher.console import SetupFailed

NEEDED_BYTES = 1_000_000_000  # .venv takes half of it, and pip as much again while it unpacks
WINDOWS_PATH_LIMIT = 259
LONGEST_BELOW = 165  # characters of the longest path inside .venv, with the separator
WINDOWS_DISKS = ("9p", "drvfs", "v9fs", "virtiofs")
SAMPLE_FILES = 40


def refuse_unusable(folder: Path) -> None:
    """Raises SetupFailed, with a remedy, if no environment can be created in `folder`."""
    if os.pathsep in str(folder):
        raise SetupFailed(
            f"The folder's path {folder} contains {os.pathsep!r}, which Python environments do not support.",
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
                f"{folder} is on a disk mounted with noexec, so libraries cannot be loaded from it.",
                "Copy the repository to another disk, such as your home folder, and start again there.",
            )
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise full(folder, free)


def unwritable(folder: Path) -> SetupFailed:
    """Return the error for a folder that is read-only or belongs to another user."""
    whose = _owner_note(folder)
    remedy = "Copy the repository to a folder that you own, and start again there."
    if whose.endswith(" root"):
        remedy = f"After a start with sudo: sudo chown -R $(id -un) {folder.parent if folder.is_file() else folder}"
    return SetupFailed(f"{folder} is not writable{whose}.", remedy)


def full(folder: Path, free: int) -> SetupFailed:
    """Return the error for a disk without space for the packages."""
    return SetupFailed(
        f"The disk is full: {free / 1e6:.0f} MB free at {folder}, {NEEDED_BYTES / 1e6:.0f} MB needed.",
        "Free some space, or copy the repository to another disk, and start again.",
    )


def too_deep(folder: Path) -> SetupFailed:
    """Return the error for a path that exceeds Windows' limit with the packages' longest paths."""
    return SetupFailed(
        f"The folder's path has {len(str(folder))} characters; the packages' paths would exceed Windows' limit.",
        r"Move the folder to a short path such as C:\ts, or allow long paths (docs/windows.md), and start again.",
    )


def long_paths_allowed() -> bool:
    """Return Windows' setting LongPathsEnabled; False if it cannot be read."""
    if sys.platform != "win32":
        return True
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    except OSError:
        return False


def _owner_note(path: Path) -> str:
    if sys.platform == "win32" or path.stat().st_uid == os.geteuid():
        return ""
    import pwd

    try:
        owner = pwd.getpwuid(path.stat().st_uid).pw_name
    except KeyError:
        owner = f"user {path.stat().st_uid}"
    return f"; it belongs to {owner}"


def on_windows_disk(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether, inside WSL, the folder is on a Windows disk."""
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
    """Return lines with the measured time for small files there and in a Linux folder, and the faster way."""
    here, there = _sample_s(folder), _sample_s(native)
    return [
        f"This folder is on a Windows disk: {SAMPLE_FILES} small files took {here:.2f} s here and {there:.2f} s in "
        f"{native}; an environment has thousands.",
        f"Faster: cp -r {folder} ~/touchstone && cd ~/touchstone && ./launch_wsl.sh",
    ]


def _sample_s(folder: Path) -> float:
    sample = folder / f".touchstone-sample-{os.getpid()}"
    started_s = time.monotonic()
    try:
        sample.mkdir()
        for number in range(SAMPLE_FILES):
            (sample / str(number)).write_bytes(b"x" * 2000)
        for number in range(SAMPLE_FILES):
            (sample / str(number)).read_bytes()
    finally:
        shutil.rmtree(sample, ignore_errors=True)
    return time.monotonic() - started_s
