"""A damaged history is set aside, with the files of its jobs, so that the service starts and nothing is thrown away."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

CHECKED_BYTES = 64 << 20  # a larger file would delay the start; there only what the start reads is checked
_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MARK = "damaged-history"


def is_corruption(error: sqlite3.Error) -> bool:
    """Whether the file is no database, or not whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CODES  # the rest are SQLite's finer codes


def remember(history: Path) -> None:
    """Leaves a note for the next start, since damage was met while the history was in use."""
    history.with_name(_MARK).touch()


def check(history: Path, db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError if the last run met damage, or a short look at a small file does."""
    if history.with_name(_MARK).exists():
        raise _found("damage was met during the last run")
    if history.stat().st_size <= CHECKED_BYTES:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise _found(verdict)


def quarantine_database(history: Path, artifacts: Path) -> Path:
    """Moves the history and the files of its jobs to a folder of their own beside it; returns that folder."""
    folder = history.with_name(f"damaged-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
    folder.mkdir()
    history.with_name(_MARK).unlink(missing_ok=True)
    for file in (history, *(history.with_name(history.name + end) for end in ("-wal", "-shm")), artifacts):
        if file.exists():
            file.rename(folder / file.name)
    return folder


def _found(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
