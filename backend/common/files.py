"""File checks: regular files, names that Windows reserves, free disk space."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_RESERVED = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE | re.DOTALL
)


def require_regular_file(path: Path) -> None:
    """Raise OSError unless the path is a regular file or a link to one.

    Opening a named pipe in a folder from an untrusted source would block forever.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a pipe, a device or a folder, and never waits for a pipe."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises OSError, also for a pipe or a folder, and ValueError."""
    with io.TextIOWrapper(open_regular_file(path), encoding="utf-8") as file:
        return file.read()


def find_outside_link(folder: Path, names: Iterable[str]) -> str | None:
    """Return the first of the files in a folder that is a link to somewhere else.

    A snapshot in the cache of Hugging Face may link to the blobs of its repository.
    """
    real = Path(os.path.realpath(folder))
    homes = [real, *(parent.parent / "blobs" for parent in real.parents if parent.name == "snapshots")]
    for name in names:
        target = Path(os.path.realpath(folder / name))
        if not any(target.is_relative_to(home) for home in homes):
            return name
    return None


def is_reserved_windows_name(name: str) -> bool:
    """Return whether a file of this name would open a device on Windows, such as NUL or `com1.onnx`."""
    return _RESERVED.fullmatch(name.rstrip(" .")) is not None


@contextlib.contextmanager
def require_disk_space(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Raise OSError (ENOSPC) if the disk has not enough free space.

    A RuntimeError in the block, while the space is not free, becomes the same OSError: soundfile raises one for
    every failed write and does not give the reason.
    """
    if shutil.disk_usage(folder).free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        yield
    except RuntimeError as error:  # soundfile.SoundFileError is a subclass
        if shutil.disk_usage(folder).free < needed_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
