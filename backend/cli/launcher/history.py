"""A backup of the job history before an update: an older version cannot read the tables of a newer one."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

NAME = "jobs.sqlite3"


def copy(data: Path, backup: Path) -> None:
    """Back up the history, if there is one, to the folder `backup`."""
    if (data / NAME).is_file():
        with contextlib.closing(_connect(data)) as current, contextlib.closing(sqlite3.connect(backup / NAME)) as kept:
            current.backup(kept)


def restore(data: Path, backup: Path) -> bool:
    """Restore the backup if the table version changed; return whether it did. The newer history is kept as .newer."""
    if not (backup / NAME).is_file() or not (data / NAME).is_file() or _table_version(data) == _table_version(backup):
        return False
    for end in ("", "-wal", "-shm"):
        if (data / f"{NAME}{end}").exists():
            (data / f"{NAME}{end}").replace(data / f"{NAME}.newer{end}")
    with contextlib.closing(_connect(backup)) as kept, contextlib.closing(sqlite3.connect(data / NAME)) as current:
        kept.backup(current)
    return True


def _connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / NAME)


def _table_version(folder: Path) -> int:
    with contextlib.closing(_connect(folder)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])
