"""How a worker delivers files: each is written in a temporary folder, flushed to disk, then moved into place.

If the worker or the machine is killed at any time, a file is complete or absent.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from backend.child.download.workspace import sync_folder
from backend.common.errors import DiskFull

MAKING = ".making"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArtifactWriter:
    """The folder of one job; `folder` is empty for a job without files."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def open(self) -> str:
        """Create the temporary folder and return its path; "" for a job without files."""
        if self._folder is None:
            return ""
        temporary = self._folder / MAKING
        temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
        return str(temporary)

    def deliver(self, name: str) -> int:
        """Move a complete file into place; return its size in bytes. Raises OSError."""
        assert self._folder, "a job with files has a folder"
        temporary, target = self._folder / MAKING / name, self._folder / name
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        temporary.replace(target)
        sync_folder(self._folder)
        return size


def disk_full_error(error: OSError) -> DiskFull | None:
    """Return the error to raise for an OSError that means a full disk, else None."""
    if error.errno not in _DISK_FULL:
        return None
    return DiskFull(
        f"The disk that holds the data folder is full ({error.strerror}).",
        "Free some space there, or delete old jobs, then rerun the job.",
    )
