"""Job history in SQLite: jobs, their events and receipts, whole after any crash of the process, and the jobs' files.

One thread owns the one connection, so callers never wait for a lock and the event loop never for the disk. Token events
are written in packs, but expand to exactly the numbered events that followers saw.
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

from backend.child.artifact_writer import full
from backend.common.errors import Configuration, DiskFull, Internal, Interrupted, TouchstoneError
from backend.common.types import ACTIVE, Event
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.store import corruption
from backend.jobs.store.disk_reserve import DiskReserve
from backend.jobs.store.schema import MIGRATIONS, Change, Row, Statement, changed, decoded, insert, packed

Result = TypeVar("Result")
log = logging.getLogger(__name__)

_ENDED = f"status NOT IN {ACTIVE}"
SWEEP_AT_ONCE = 100
BUSY_S = 2.0  # how long another program's lock on the file is waited out


class JobStore:
    """The history file. Every method may raise DiskFull, Internal or, once it is closed, Interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reserve = DiskReserve(path.with_name("reserve"))
        self.artifacts = ArtifactStore(path.parent / "artifacts")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._db: Any = None  # the sqlite3.Connection, once it is open
        self._file: tuple[int, int] | None = None  # what tells the open file from another of its name
        self._closed = False
        self.set_aside: Path | None = None  # where a history lies that was found damaged at the start

    async def open(self) -> None:
        """Opens or makes the file and brings it to the newest version. Raises Configuration for an unusable folder."""
        try:
            await self._do(self._open)
        except BaseException as error:
            self._thread.submit(self._close_file)
            self._thread.shutdown(wait=False)
            if isinstance(error, Internal):  # not of the service: its folder is what the settings name
                raise Configuration(error.detail, error.remedy) from error
            raise

    async def close(self) -> None:
        """Writes what is pending and closes."""
        self._closed = True  # whatever comes from now on is refused
        await self._in_thread(self._close_file)
        self._thread.shutdown()

    async def add(self, job: Row, events: Iterable[Event] = ()) -> None:
        """Stores a new job durably, with its first events; refuses it where the room for its ending is missing."""
        await self._write([insert(job), *packed(job["id"], events)], self._keep_reserve)

    async def reserve(self, ids: int) -> None:
        """Gives every job that has not ended that many event ids more."""
        await self._write([(f"UPDATE jobs SET reserved = reserved + ? WHERE NOT ({_ENDED})", [ids])])

    async def update(self, job_id: str, fields: Row, events: Iterable[Event] = ()) -> None:
        """Changes a job and appends events in one transaction; the same events again, and more, replace the first."""
        await self.update_all([(job_id, fields, list(events))])

    async def update_all(self, changes: Iterable[Change]) -> None:
        """Changes several jobs in one transaction. On a full disk it takes the room that was kept for this."""
        statements = [statement for change in changes for statement in changed(*change)]
        try:
            await self._write(statements)
        except DiskFull:
            if not await self._do(self._reserve.release):
                raise
            await self._write(statements)

    async def job(self, job_id: str) -> Row | None:
        """One job, or None."""
        rows = await self._read("SELECT * FROM jobs WHERE id = ?", [job_id])
        return rows[0] if rows else None

    async def jobs(
        self, *, statuses: Iterable[str] = (), task: str | None = None, limit: int = 50, before: str | None = None
    ) -> list[Row]:
        """Jobs, newest first, older than the job `before` (which may have been deleted meanwhile)."""
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
        """The highest id of all jobs."""
        return await self._do(lambda: self._db.execute("SELECT max(id) FROM jobs").fetchone()[0])

    async def by_key(self, key: str, since: str) -> Row | None:
        """The newest job made with this Idempotency-Key since that moment."""
        sql = "SELECT * FROM jobs WHERE idempotency_key = ? AND created_at >= ? ORDER BY seq DESC LIMIT 1"
        rows = await self._read(sql, [key, since])
        return rows[0] if rows else None

    async def events(self, job_id: str) -> list[Event]:
        """All events of a job in order."""
        packs = await self._do(
            lambda: self._db.execute("SELECT pack FROM events WHERE job = ? ORDER BY first", [job_id]).fetchall()
        )
        return [Event(*item) for (pack,) in packs for item in json.loads(pack)]

    async def delete(self, job_id: str) -> None:
        """Forgets a job, its events and its files."""
        await self._write([("DELETE FROM jobs WHERE id = ?", [job_id])])
        await self._do(lambda: self.artifacts.remove([job_id]))

    async def sweep(self, before: str, keep_bytes: int) -> int:
        """Forgets ended jobs that ended before that moment, and the oldest ones beyond the size, files included.

        Returns how many.
        """

        def work() -> int:
            old = self._ids(f"{_ENDED} AND ended_at < ?", before)
            self._forget(old)
            gone = len(old)
            sizes = self.artifacts.sizes()
            while (excess := self._bytes() + sum(sizes.values()) - keep_bytes) > 0:
                swept = []
                for job_id in self._ids(f"{_ENDED} ORDER BY seq LIMIT {SWEEP_AT_ONCE}"):
                    if excess > 0:  # what a row takes is not known beforehand, what its files take is
                        swept.append(job_id)
                        excess -= sizes.pop(job_id, 0)
                if not swept:
                    break
                self._forget(swept)
                gone += len(swept)
            if gone:
                self._db.executescript("PRAGMA incremental_vacuum")  # `execute` would take one step, which is one page
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return gone

        return await self._do(work)

    def _ids(self, where: str, *values: str) -> list[str]:
        return [job_id for (job_id,) in self._db.execute(f"SELECT id FROM jobs WHERE {where}", values)]

    def _forget(self, job_ids: list[str]) -> None:
        with self._db:
            self._db.executemany("DELETE FROM jobs WHERE id = ?", [[job_id] for job_id in job_ids])
        self.artifacts.remove(job_ids)

    def _bytes(self) -> int:
        """What the rows take, without the pages that are free for new ones."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    async def _read(self, sql: str, values: list[Any]) -> list[Row]:
        def read() -> list[Row]:
            cursor = self._db.execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [decoded(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]

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
            raise _translated(error, self.path) from error
        except OSError as error:
            raise self._untouchable(error) from error

    def _close_file(self) -> None:
        if self._db is not None:
            self._db.close()

    def _check_in_place(self) -> None:
        """A file that somebody removed or replaced takes writes as before, and nobody will ever read them."""
        if self._identity(self.path) != self._file:
            raise Internal(
                f"The job history {self.path} was removed or replaced while the server runs.",
                "Restart the server: it goes on with what lies there now.",
            )

    @staticmethod
    def _identity(path: Path) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            facts = path.stat()
            return facts.st_dev, facts.st_ino
        return None

    def _keep_reserve(self) -> None:
        try:
            self._reserve.allocate()
        except OSError as error:
            raise self._untouchable(error, "for a job's ending") from error

    def _untouchable(self, error: OSError, why: str = "left") -> TouchstoneError:
        folder = self.path.parent
        if full(error):
            return DiskFull(
                f"The disk that holds {folder} has no room {why}: {error.strerror}.", "Free some space there."
            )
        detail = f"The data folder {folder} cannot be used: {error.strerror} ({error.filename})."
        return Internal(detail, "Check the folder's permissions and what lies there.")

    def _open(self) -> None:
        try:
            self._open_file()
        except sqlite3.Error as error:
            if not corruption.is_corruption(error):
                raise
            self._close_file()
            self.set_aside = corruption.quarantine_database(self.path, self.artifacts.root)
            log.error("the job history was damaged and is set aside", extra={"folder": self.set_aside, "why": error})
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
        with contextlib.suppress(OSError):  # said when a job is to be added
            self._reserve.allocate()
        self.artifacts.sweep(self._ids("TRUE"))  # what a killed server has left


def _translated(error: sqlite3.Error, path: Path) -> TouchstoneError:
    if "full" in str(error):
        return DiskFull(
            f"The job history {path} cannot grow: {error}.", f"Free space on the disk that holds {path.parent}."
        )
    if corruption.is_corruption(error):
        remedy = "Restart the server: it sets the damaged history aside and begins a new one."
    elif "locked" in str(error):
        remedy = "Close the other program that has the file open."
    else:
        remedy = "Check the disk and the folder's permissions."
    return Internal(f"The job history {path} failed: {error}.", remedy)
