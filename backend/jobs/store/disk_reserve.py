"""Room on the disk that is kept for the endings of accepted jobs: a file that is given up when the disk is full.

A job whose ending cannot be stored would be another one after a crash than the one that its caller was told.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 4 << 20


class DiskReserve:
    """A file of random bytes, which no file system can store in less room."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._kept = False

    @property
    def is_allocated(self) -> bool:
        """Whether the room is set aside."""
        return self._kept

    def allocate(self) -> None:
        """Sets the room aside. Raises OSError, with nothing kept, when the disk has not got it."""
        if self._kept:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != self._size_bytes:
                self._path.write_bytes(os.urandom(self._size_bytes))
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        self._kept = True

    def release(self) -> bool:
        """Frees the room; False if there was none."""
        had, self._kept = self._kept, False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return had
