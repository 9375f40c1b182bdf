"""How a worker hands over files: each is made in a folder aside, made durable, and moved to its place as a whole.

Whoever kills the worker or the machine at any moment finds a file complete or not at all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from backend.child.download.workspace import sync_folder
from backend.common.errors import DiskFull

MAKING = ".making"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArtifactWriter:
    """The folder of one job; empty `folder` for a job that makes no files."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def open(self) -> str:
        """Makes the folder in which files are made, and gives its path."""
        if self._folder is None:
            return ""
        making = self._folder / MAKING
        making.mkdir(parents=True, exist_ok=True, mode=0o700)
        return str(making)

    def hand_over(self, name: str) -> int:
        """Moves a file that is complete to its place; returns its bytes. Raises OSError."""
        assert self._folder, "a job that makes files has a folder"
        made, place = self._folder / MAKING / name, self._folder / name
        with made.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        made.replace(place)
        sync_folder(self._folder)
        return size


def full(error: OSError) -> DiskFull | None:
    """The refusal that an error of the file system stands for, if the disk is full."""
    if error.errno not in _FULL:
        return None
    return DiskFull(
        f"The disk that holds the data folder is full ({error.strerror}).",
        "Free some space there, or delete old jobs, then run the job again.",
    )
