"""Reading what a stranger's folder holds: a pipe there would be waited for without end, before anything else starts."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def require_regular_file(path: Path) -> None:
    """Raises OSError for what is neither a file nor a link to one, or is not there."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))


def read_text(path: Path) -> str:
    """The text of a file in UTF-8. Raises OSError, also for a pipe or a folder, and ValueError."""
    require_regular_file(path)
    return path.read_text(encoding="utf-8")
