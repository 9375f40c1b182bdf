"""An exclusive file lock that the operating system releases when its holder dies.

The package `filelock` is not used: child processes import this module with interpreters that may not have it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class FileLock:
    """An exclusive lock. The file is never deleted, because another process could then lock a new file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Return whether the lock was acquired; never block. Raises OSError if the file cannot be created."""
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

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
