"""The folder beside a download's target where it is made: for each file a lock, and a folder that is temporary or kept.

`NAME.tmp` is thrown away when the download ends, however it ends. `NAME.part` outlives it, so that the next download of
the same file goes on where this one broke off.
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
    """The lock that whoever downloads this file holds."""
    return FileLock(workspace / (name + ".lock"))


def temporary_for(workspace: Path, name: str) -> Path:
    """The folder in which this file is made."""
    return workspace / (name + ".tmp")


def part_for(workspace: Path, name: str) -> Path:
    """The folder that keeps what has come of this file."""
    return workspace / (name + ".part")


@contextlib.contextmanager
def turn(workspace: Path, name: str, report: ProgressReport) -> Iterator[None]:
    """Waits until no other process fetches the same file."""
    lock = lock_for(workspace, name)
    while not lock.acquire():
        report.progress("wait", 0, None)
        time.sleep(REPORT_S)
    try:
        yield
    finally:
        lock.release()


def sweep(workspace: Path, now_s: float | None = None) -> None:
    """Removes what killed downloads have left and what nobody went on with, unless a living process works on it."""
    now_s = time.time() if now_s is None else now_s
    for folder in (*workspace.glob("*.tmp"), *workspace.glob("*.part")):
        if folder.suffix == ".part" and now_s - _newest_s(folder) < PART_KEPT_S:
            continue
        lock = lock_for(workspace, folder.stem)
        if lock.acquire():
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def sync_folder(folder: Path) -> None:
    """Makes a rename in it outlast a power cut."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _newest_s(folder: Path) -> float:
    moments = [folder.stat().st_mtime]
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            moments.append(file.stat().st_mtime)
    return max(moments)
