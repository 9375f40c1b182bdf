"""A lock between processes, held by an open file: the system releases it when the launcher is killed."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def _try(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _wait(file: IO[bytes]) -> None:
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # fails after ten attempts
            except OSError:
                continue
            return
else:
    import fcntl

    def _try(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def held(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock in the block. Call `on_wait` once if another process has it. The file stays: removal would race."""
    with path.open("ab") as file:
        if not _try(file):
            on_wait()
            _wait(file)
        if sys.platform != "win32":
            os.set_inheritable(file.fileno(), True)  # subprocesses hold it too, also after the launcher is killed
        yield
