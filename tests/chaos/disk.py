"""The disk of the data folder: a small file system in memory that can be filled, if the user may mount one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import time
from pathlib import Path

SIZE_MIB = 160  # 200 rounds leave a history of some 60 MB


class Disk:
    """Mounted between `mount` and `unmount`; without the right to mount, `small` stays false and nothing is filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.small = False
        self.full_spans: list[tuple[float, float | None]] = []
        self._ballast = folder / "ballast"

    def mount(self) -> None:
        """Makes the folder, small if the user may."""
        self.folder.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "touchstone-chaos", str(self.folder)]
        with contextlib.suppress(OSError):
            self.small = os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0

    def unmount(self) -> None:
        """Gives it back; what still uses it keeps it until it ends."""
        if self.small:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)

    def fill(self, left_bytes: int = 0) -> None:
        """Leaves so much room: none on the disk beyond it, and none in the history's log."""
        self.full_spans.append((time.time(), None))
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._history, timeout=0.2)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with self._ballast.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while ballast.write(b"\0" * size):
                        pass
            with contextlib.suppress(OSError):
                ballast.truncate(max(0, ballast.tell() - left_bytes))

    def free(self) -> None:
        """Makes room again."""
        self._ballast.unlink(missing_ok=True)
        if self.full:
            self.full_spans[-1] = (self.full_spans[-1][0], time.time())

    @property
    def full(self) -> bool:
        """Whether it was filled and not freed."""
        return bool(self.full_spans) and self.full_spans[-1][1] is None

    def was_full(self, since: float) -> bool:
        """Whether it was full at some time since then."""
        return any(ended is None or ended >= since for _, ended in self.full_spans)

    @property
    def _history(self) -> Path:
        return self.folder / "jobs.sqlite3"
