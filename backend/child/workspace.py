"""The folder beside a download's target where it is made: a lock and a temporary folder for each file."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = ".fetch"  # in the folder of the target, so that the last step is a rename within one file system


def lock_for(workspace: Path, name: str) -> FileLock:
    """The lock that whoever downloads this file holds."""
    return FileLock(workspace / (name + ".lock"))


def temporary_for(workspace: Path, name: str) -> Path:
    """The folder in which this file is made."""
    return workspace / (name + ".tmp")


def sweep(workspace: Path) -> None:
    """Removes what killed downloads have left, for every file that no living process works on."""
    for folder in workspace.glob("*.tmp"):
        lock = lock_for(workspace, folder.stem)
        if lock.acquire():
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


class FileLock:
    """An exclusive lock that the system drops when its holder dies. The file stays: removing it would let two in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Takes the lock if nobody has it; never waits. Raises OSError if the file cannot be made."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Gives it back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
