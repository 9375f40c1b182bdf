"""Room on the disk for files that a library writes which says nothing of why it fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def require_disk_space(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Raises OSError (no space) where `needed_bytes` are not there, also for what a library says while they are not."""
    if shutil.disk_usage(folder).free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        yield
    except RuntimeError as error:  # soundfile.SoundFileError is one
        if shutil.disk_usage(folder).free < needed_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
