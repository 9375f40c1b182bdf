"""An exclusive file lock that the operating system releases when its holder dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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

    @property
    def held(self) -> bool:
        """Whether we have it."""
        return self._fd is not None

    def release(self) -> None:
        """Gives it back, if we have it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
