"""The job store: jobs, events and receipts in SQLite, consistent after any crash of the process, and the jobs' files.

One thread owns the only connection, so callers never wait for a lock and the event loop never waits for the disk. Token
events are stored in packs, which expand to exactly the numbered events that followers saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from backend.child.artifact_writer import disk_full_error
from backend.common.errors import Configuration, DiskFull, Internal, Interrupted, TouchstoneError
from backend.common.types import ACTIVE, Event
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.store import corruption
from backend.jobs.store.disk_reserve import DiskReserve
from backend.jobs.store.schema import (
    MIGRATIONS,
    Change,
    Row,
    Statement,
    decode_row,
    insert_events_sql,
    insert_job_sql,
    update_job_sql,
)

Result = TypeVar("Result")
log = logging.getLogger(__name__)

_ENDED = f"status NOT IN {ACTIVE}"
SWEEP_AT_ONCE = 100
BUSY_S = 2.0  # timeout for a lock that another program holds on the file


class JobStore:
    """The history file. Every method may raise DiskFull, Internal or, after `close`, Interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reserve = DiskReserve(path.with_name("reserve"))
        self.artifacts = ArtifactStore(path.parent / "artifacts")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._db: Any = None  # the sqlite3.Connection, once it is open
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._closed = False
        self.set_aside: Path | None = None  # the folder with a history that was corrupt at the start

    async def open(self) -> None:
        """Open or create the file and migrate it to the newest version. Raises Configuration for an unusable folder."""
        try:
            await self._do(self._open)
        except BaseException as error:
            self._thread.submit(self._close_file)
            self._thread.shutdown(wait=False)
            if isinstance(error, Internal):  # at the start it is a matter of the folder that the settings name
                raise Configuration(error.detail, error.remedy) from error
            raise

    async def close(self) -> None:
        """Finish pending writes and close the file."""
        self._closed = True  # later calls are refused
        await self._in_thread(self._close_file)
        self._thread.shutdown()

    async def add(self, job: Row, events: Iterable[Event] = ()) -> None:
        """Store a new job durably, with its first events. Raises DiskFull if the space for its ending is missing."""
        await self._write([insert_job_sql(job), *insert_events_sql(job["id"], events)], self._allocate_reserve)

    async def reserve(self, ids: int) -> None:
        """Reserve that many more event ids for every job that has not ended."""
        await self._write([(f"UPDATE jobs SET reserved = reserved + ? WHERE NOT ({_ENDED})", [ids])])

    async def update(self, job_id: str, fields: Row, events: Iterable[Event] = ()) -> None:
        """Change a job and append events in one transaction. The same events again, and more, replace them."""
        await self.update_all([(job_id, fields, list(events))])

    async def update_all(self, changes: Iterable[Change]) -> None:
        """Change several jobs in one transaction. On a full disk it uses the reserved space."""
        statements = [statement for change in changes for statement in update_job_sql(*change)]
        try:
            await self._write(statements)
        except DiskFull:
            if not await self._do(self._reserve.release):
                raise
            await self._write(statements)

    async def job(self, job_id: str) -> Row | None:
        """Return one job, None for an unknown id."""
        rows = await self._read("SELECT * FROM jobs WHERE id = ?", [job_id])
        return rows[0] if rows else None

    async def jobs(
        self, *, statuses: Iterable[str] = (), task: str | None = None, limit: int = 50, before: str | None = None
    ) -> list[Row]:
        """Return jobs, newest first, older than the job `before` (which may be deleted meanwhile). Default: all."""
        wanted = list(statuses)
        where = [f"status IN ({', '.join('?' * len(wanted))})"] if wanted else []
        values: list[Any] = [*wanted]
        if task:
            where.append("task = ?")
            values.append(task)
        if before:
            where.append(
                "seq < coalesce((SELECT seq FROM jobs WHERE id = ?), (SELECT min(seq) FROM jobs WHERE id > ?), 1 << 62)"
            )
            values += [before, before]
        condition = f"WHERE {' AND '.join(where)} " if where else ""
        return await self._read(f"SELECT * FROM jobs {condition}ORDER BY seq DESC LIMIT ?", [*values, limit])

    async def newest_id(self) -> str | None:
        """Return the highest id of all jobs, None without jobs."""
        return await self._do(lambda: self._db.execute("SELECT max(id) FROM jobs").fetchone()[0])

    async def by_key(self, key: str, since: str) -> Row | None:
        """Return the newest job made with this Idempotency-Key since that timestamp, or None."""
        sql = "SELECT * FROM jobs WHERE idempotency_key = ? AND created_at >= ? ORDER BY seq DESC LIMIT 1"
        rows = await self._read(sql, [key, since])
        return rows[0] if rows else None

    async def events(self, job_id: str) -> list[Event]:
        """Return all events of a job in order."""
        packs = await self._do(
            lambda: self._db.execute("SELECT pack FROM events WHERE job = ? ORDER BY first", [job_id]).fetchall()
        )
        return [Event(*item) for (pack,) in packs for item in json.loads(pack)]

    async def delete(self, job_id: str) -> None:
        """Delete a job, its events and its files."""
        await self._write([("DELETE FROM jobs WHERE id = ?", [job_id])])
        await self._do(lambda: self.artifacts.remove([job_id]))

    async def sweep(self, before: str, keep_bytes: int) -> int:
        """Delete jobs that ended before that timestamp, then the oldest ones beyond `keep_bytes`, files included.

        Returns how many were deleted.
        """

        def work() -> int:
            expired = self._ids(f"{_ENDED} AND ended_at < ?", before)
            self._delete(expired)
            deleted = len(expired)
            sizes = self.artifacts.sizes()
            while (excess := self._bytes() + sum(sizes.values()) - keep_bytes) > 0:
                oldest = []
                for job_id in self._ids(f"{_ENDED} ORDER BY seq LIMIT {SWEEP_AT_ONCE}"):
                    if excess > 0:  # the size of a row is unknown, that of its files is known
                        oldest.append(job_id)
                        excess -= sizes.pop(job_id, 0)
                if not oldest:
                    break
                self._delete(oldest)
                deleted += len(oldest)
            if deleted:
                self._db.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page only
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return deleted

        return await self._do(work)

    def _ids(self, where: str, *values: str) -> list[str]:
        return [job_id for (job_id,) in self._db.execute(f"SELECT id FROM jobs WHERE {where}", values)]

    def _delete(self, job_ids: list[str]) -> None:
        with self._db:
            self._db.executemany("DELETE FROM jobs WHERE id = ?", [[job_id] for job_id in job_ids])
        self.artifacts.remove(job_ids)

    def _bytes(self) -> int:
        """Return the bytes of the database, without free pages."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    async def _read(self, sql: str, values: list[Any]) -> list[Row]:
        def read() -> list[Row]:
            cursor = self._db.execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [decode_row(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]

        return await self._do(read)

    async def _write(self, statements: list[Statement], before: Callable[[], None] = lambda: None) -> None:
        def write() -> None:
            self._check_in_place()
            before()
            with self._db:
                for sql, values in statements:
                    self._db.execute(sql, values)

        await self._do(write)

    async def _do(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise Interrupted("The server is stopping.", "Try again after its next start.")
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            if corruption.is_corruption(error):
                with contextlib.suppress(OSError):
                    corruption.remember(self.path)
            raise _to_touchstone_error(error, self.path) from error
        except OSError as error:
            raise self._folder_error(error) from error

    def _close_file(self) -> None:
        if self._db is not None:
            self._db.close()

    def _check_in_place(self) -> None:
        """Raises Internal if the file was removed or replaced: writes would succeed and be lost."""
        if self._identity(self.path) != self._file:
            raise Internal(
                f"The job history {self.path} was removed or replaced while the server runs.",
                "Restart the server: it continues with the file that is there now.",
            )

    @staticmethod
    def _identity(path: Path) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            facts = path.stat()
            return facts.st_dev, facts.st_ino
        return None

    def _allocate_reserve(self) -> None:
        if self._reserve.is_allocated:
            return
        try:
            self._reserve.allocate()
        except OSError as error:
            raise self._folder_error(error, "for a job's ending") from error

    def _folder_error(self, error: OSError, purpose: str = "left") -> TouchstoneError:
        folder = self.path.parent
        if disk_full_error(error):
            return DiskFull(
                f"The disk that holds {folder} has no space {purpose}: {error.strerror}.", "Free some space there."
            )
        detail = f"The data folder {folder} cannot be used: {error.strerror} ({error.filename})."
        return Internal(detail, "Check the folder's permissions and content.")

    def _open(self) -> None:
        try:
            self._open_file()
        except sqlite3.Error as error:
            if not corruption.is_corruption(error):
                raise
            self._close_file()
            self.set_aside = corruption.quarantine_database(self.path, self.artifacts.root)
            log.error("the job history was corrupt and is set aside", extra={"folder": self.set_aside, "why": error})
            self._open_file()

    def _open_file(self) -> None:
        self._db = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=True)
        self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect while the file is new
        mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise Configuration(
                f"{self.path.parent} cannot hold the job history: SQLite's write-ahead log does not work there.",
                "Set storage.data_dir to a folder on a local disk (not a network share or a Windows drive under WSL).",
            )
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise Configuration(
                f"The job history {self.path} was written by a newer Touchstone (version {version} of its tables).",
                "Update Touchstone, or set storage.data_dir to another folder.",
            )
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
        self._file = self._identity(self.path)
        corruption.check(self.path, self._db)
        with contextlib.suppress(OSError):  # the error is raised when a job is added
            self._reserve.allocate()
        self.artifacts.sweep(self._ids("TRUE"))  # files that a killed server left


def _to_touchstone_error(error: sqlite3.Error, path: Path) -> TouchstoneError:
    """Return DiskFull or Internal for an error of SQLite."""
    if "full" in str(error):
        return DiskFull(
            f"The job history {path} cannot grow: {error}.", f"Free space on the disk that holds {path.parent}."
        )
    if corruption.is_corruption(error):
        remedy = "Restart the server: it sets the corrupt history aside and starts a new one."
    elif "locked" in str(error):
        remedy = "Close the other program that has the file open."
    else:
        remedy = "Check the disk and the folder's permissions."
    return Internal(f"The job history {path} failed: {error}.", remedy)
