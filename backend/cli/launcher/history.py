"""The history of jobs, copied before an update: a newer version may change its tables, which an older cannot read."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

NAME = "jobs.sqlite3"


def copy(data: Path, aside: Path) -> None:
    """Copies it whole, if there is one."""
    if (data / NAME).is_file():
        with contextlib.closing(_opened(data)) as ours, contextlib.closing(sqlite3.connect(aside / NAME)) as kept:
            ours.backup(kept)


def restore(data: Path, aside: Path) -> bool:
    """Takes the copy back only if the tables have changed since; True if so. The newer one stays beside it."""
    if not (aside / NAME).is_file() or not (data / NAME).is_file() or _tables(data) == _tables(aside):
        return False
    for end in ("", "-wal", "-shm"):
        if (data / f"{NAME}{end}").exists():
            (data / f"{NAME}{end}").replace(data / f"{NAME}.newer{end}")
    with contextlib.closing(_opened(aside)) as kept, contextlib.closing(sqlite3.connect(data / NAME)) as ours:
        kept.backup(ours)
    return True


def _opened(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / NAME)


def _tables(folder: Path) -> int:
    with contextlib.closing(_opened(folder)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])
