"""The folder next to a download's target in which it is made: for each file a lock, and a temporary or kept folder.

`NAME.tmp` is deleted when the download ends, however it ends. `NAME.part` is kept, so that the next download of the
same file resumes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from backend.child.progress_report import REPORT_S, ProgressReport
from backend.common.file_lock import FileLock

NAME = ".fetch"  # in the folder of the target, so that the last step is a rename within one file system
PART_KEPT_S = 30 * 86_400.0


def lock_for(workspace: Path, name: str) -> FileLock:
    """Return the lock that a process holds while it downloads this file."""
    return FileLock(workspace / (name + ".lock"))


def temporary_for(workspace: Path, name: str) -> Path:
    """Return the folder in which this file is made."""
    return workspace / (name + ".tmp")


def part_for(workspace: Path, name: str) -> Path:
    """Return the folder that keeps the bytes received of this file, for a later resume."""
    return workspace / (name + ".part")


@contextlib.contextmanager
def exclusive(workspace: Path, name: str, report: ProgressReport) -> Iterator[None]:
    """Hold the file's lock; wait while another process downloads the same file."""
    lock = lock_for(workspace, name)
    while not lock.acquire():
        report.progress("wait", 0, None)
        time.sleep(REPORT_S)
    try:
        yield
    finally:
        lock.release()


def sweep(workspace: Path, now_s: float | None = None) -> None:
    """Delete the folders of killed downloads and partial files unused for PART_KEPT_S, unless a process works on them.

    `now_s`: Unix time; default: now.
    """
    now_s = time.time() if now_s is None else now_s
    for folder in (*workspace.glob("*.tmp"), *workspace.glob("*.part")):
        if folder.suffix == ".part" and now_s - _newest_s(folder) < PART_KEPT_S:
            continue
        lock = lock_for(workspace, folder.stem)
        if lock.acquire():
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries to disk, so that a rename survives a power failure."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _newest_s(folder: Path) -> float:
    modified_s = [folder.stat().st_mtime]
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            modified_s.append(file.stat().st_mtime)
    return max(modified_s)
