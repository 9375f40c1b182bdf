"""Corruption of the job history: a corrupt file is set aside with the jobs' files, so that the service can start."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

CHECKED_BYTES = 64 << 20  # checking a larger file would delay the start, so only what the start reads is checked
_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MARK = "damaged-history"


def is_corruption(error: sqlite3.Error) -> bool:
    """Return whether the file is not a database, or a corrupt one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CODES  # the other bits are SQLite's extended codes


def remember(history: Path) -> None:
    """Leave a mark for the next start, because the history was found corrupt while it was in use."""
    history.with_name(_MARK).touch()


def check(history: Path, db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError if the last run left the mark, or if the check of a small file fails."""
    if history.with_name(_MARK).exists():
        raise _corruption("the last run found corruption")
    if history.stat().st_size <= CHECKED_BYTES:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise _corruption(verdict)


def quarantine_database(history: Path, artifacts: Path) -> Path:
    """Move the history and the files of its jobs to a new folder next to it, and return that folder."""
    folder = history.with_name(f"damaged-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
    folder.mkdir()
    history.with_name(_MARK).unlink(missing_ok=True)
    for file in (history, *(history.with_name(history.name + end) for end in ("-wal", "-shm")), artifacts):
        if file.exists():
            file.rename(folder / file.name)
    return folder


def _corruption(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
