"""The disk reserve: space kept for the endings of accepted jobs, in a file that is deleted when the disk is full.

Without it, a job whose ending cannot be stored would have another status after a crash than the one its caller saw.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 4 << 20


class DiskReserve:
    """A file of random bytes, which no file system can compress."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.is_allocated = False

    def allocate(self) -> None:
        """Reserve the space. Raises OSError if the disk is too full."""
        try:
            if not self._path.exists() or self._path.stat().st_size != self._size_bytes:
                self._path.write_bytes(os.urandom(self._size_bytes))
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        self.is_allocated = True

    def release(self) -> bool:
        """Free the space. Return False if none was reserved."""
        was_allocated, self.is_allocated = self.is_allocated, False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return was_allocated
