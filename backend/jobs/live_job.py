"""A live job: its numbered events, its text so far, and the followers that replay and then wait.

An event is durable before the next block of ids begins, and a terminal event is durable before anyone sees it, so a
crash of the server neither reuses an id nor takes back an ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from backend.common.errors import TouchstoneError
from backend.common.timestamps import utc_now
from backend.common.types import ACTIVE, TERMINAL, Artifact, Event, Job, JobStatus, Output, Problem, Progress, Receipt
from backend.jobs.event_replay import replay_artifacts, replay_text
from backend.jobs.ids import new_job_id
from backend.jobs.store.schema import Change, Row
from backend.jobs.store.sqlite import JobStore
from backend.tasks.lyrics.structure import described

ID_BLOCK = 1000


class LiveJob:
    """A job that this server process has accepted and not yet ended. Used from the manager's event loop only."""

    def __init__(
        self, store: JobStore, row: Row, past: list[Event] | None = None, tell: Callable[[Event], None] = lambda _: None
    ) -> None:
        """`past` are the stored events of a job that an earlier server accepted; ids then begin after its reserve.

        The history must have reserved another block for such a job.

        `tell` is called with each new event once it may be seen.
        """
        self._store = store
        self._tell = tell
        self._row = row
        reserved: int = row["reserved"]
        self._ids = itertools.count(1 if past is None else reserved + 1)
        self._reserved = reserved if past is None else reserved + ID_BLOCK
        self.events: list[Event] = past or []
        self._written = self._due = len(self.events)
        self._writing = asyncio.Lock()
        self._owed: Row = {}  # changes of the job that the history has not taken yet
        self._text = replay_text(self.events)
        self._followers: set[asyncio.Event] = set()
        self.artifacts = replay_artifacts(self.events)
        self.finish_reason: str | None = None
        self.result: dict[str, Any] | None = None
        self.lyrics: dict[str, Any] | None = None
        self.progress: Progress | None = None
        self.receipt: Receipt | None = None
        self.error: Problem | None = None
        self.failure: TouchstoneError | None = None  # the same, with the members that a Problem leaves out
        self.cancelling = asyncio.Event()
        self.ended = asyncio.Event()
        self.accepted_at = time.perf_counter()

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self._row["id"])

    @property
    def task(self) -> str:
        """What the job does: a task of the catalogue, or a maintenance task."""
        return str(self._row["task"])

    @property
    def caller(self) -> str:
        """Who asked, for fairness between callers."""
        return str(self._row["caller"])

    @property
    def request(self) -> dict[str, Any]:
        """The request as it was sent, with the defaults filled in."""
        request: dict[str, Any] = self._row["request"]
        return request

    @property
    def model(self) -> str | None:
        """The model's id."""
        model: str | None = self._row["model"]
        return model

    @property
    def text(self) -> str:
        """What it has written since the last fallback."""
        return "".join(self._text)

    @property
    def started_at(self) -> str:
        """When the job left the queue, or was made."""
        return str(self._row["started_at"] or self._row["created_at"])

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life."""
        status: JobStatus = self._row["status"]
        return status

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return self.status in ACTIVE

    async def accept(self, position: int) -> None:
        """Stores the job with its first event. Raises DiskFull or Internal."""
        event = self._made("queued", {"position": position})
        await self._store.add(self._row, [event])
        self._written = 1
        self._show(event)

    async def emit(self, event: str, data: dict[str, Any]) -> None:
        """Appends an event and wakes the followers; writing it is left to `flush`."""
        if event == "token":
            self._text.append(data["text"])
        elif event == "artifact":
            self.artifacts.append(Artifact(**data))
        elif event == "fallback":
            self._text.clear()
            self.artifacts.clear()
        await self._append(self._made(event, data))

    def set_queue_position(self, position: int, expected_s: float | None) -> None:
        """Notes the place in the queue; a waiting job has few events, so their ids are always reserved.

        Written with the job's next step: after a crash the place is another one anyway.
        """
        if self.ended.is_set():
            return
        self.progress = Progress("queue", 0, position, "jobs", expected_s)
        due = self._due
        self._show(self._made("progress", asdict(self.progress)))
        self._due = due

    async def set_status(self, status: JobStatus, data: dict[str, Any]) -> None:
        """Enters `queued`, `loading` or `running`, durably."""
        self._row["status"] = status
        self.progress = None
        if status != "queued" and not self._row["started_at"]:
            self._row["started_at"] = utc_now()
        await self._append(self._made(status, data))
        await self.flush({"status": status, "started_at": self._row["started_at"], "reserved": self._reserved})

    async def end(self, status: JobStatus, error: Problem | None = None) -> None:
        """Enters a terminal state: stored first, shown then. A second call changes nothing."""
        if not self.active:
            return
        assert status in TERMINAL
        self.error = error
        self.progress = None
        if self.task == "lyrics" and self._text:
            self.lyrics = await asyncio.to_thread(described, self.text, self.request["options"]["language"])
        self._row.update(status=status, ended_at=utc_now())
        view = self.view()
        event = self._made(status, asdict(error) if error else view)
        self._reserved = max(self._reserved, event.id)
        fields = {name: view[name] for name in ("status", "started_at", "ended_at", "output", "error", "receipt")}
        try:
            await self.flush({**fields, "reserved": self._reserved}, event)
        except TouchstoneError as failure:
            # The history cannot take it now. In this process the job has ended all the same, and says why.
            self.error = error or failure.problem()
            self._row["status"] = status = "error" if status == "done" else status
            self._owed |= {"status": status, "error": asdict(self.error)}
            event = Event(event.id, status, {"job_id": self.id, "at": event.data["at"], **asdict(self.error)})
        else:
            self._written += 1
        self.ended.set()
        self._show(event)

    async def flush(self, fields: Row | None = None, last: Event | None = None) -> None:
        """Writes the events not yet written, with changes of the job itself. Raises DiskFull or Internal."""
        async with self.writing(fields, last) as change:
            await self._store.update(*change)

    @contextlib.asynccontextmanager
    async def writing(self, fields: Row | None = None, last: Event | None = None) -> AsyncIterator[Change]:
        """What is to be written, for as long as that takes; if it fails, it waits to be written again."""
        async with self._writing:  # two at once would not know which of them wrote what
            fresh = self.events[self._written :]
            owed = self._owed | (fields or {})
            self._written += len(fresh)
            self._owed = {}
            try:
                yield self.id, owed, [*fresh, *([last] if last else [])]
            except BaseException:  # also when left in the middle: writing the same again does no harm
                self._written -= len(fresh)
                self._owed = owed | self._owed
                raise

    @property
    def dirty(self) -> bool:
        """Whether something waits to be written, or is being written and may fail."""
        return self._written < self._due or bool(self._owed) or self._writing.locked()

    def abandon(self) -> None:
        """Ends all followers without an ending of the job: the server stops, the job stays queued."""
        self.ended.set()
        self._wake()

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Events with ids above `after`, those there and those to come, until the terminal one."""
        woken = asyncio.Event()
        self._followers.add(woken)
        position = 0
        try:
            while True:
                woken.clear()
                while position < len(self.events):
                    event = self.events[position]
                    position += 1
                    if event.id > after:
                        yield event
                if self.ended.is_set():
                    return
                await woken.wait()
        finally:
            self._followers.discard(woken)

    def view(self) -> dict[str, Any]:
        """The Job as callers see it."""
        text = self.text if self._text else None
        output = Output(text, self.finish_reason, self.artifacts, self.result, self.lyrics)
        return _view(self._row, asdict(output), self.progress, self.error, self.receipt)

    def _made(self, event: str, data: dict[str, Any]) -> Event:
        return Event(next(self._ids), event, {"job_id": self.id, "at": utc_now(), **data})

    async def _append(self, event: Event) -> None:
        while event.id > self._reserved:
            await self._store.update(self.id, {"reserved": self._reserved + ID_BLOCK})
            self._reserved += ID_BLOCK
        self._show(event)

    def _show(self, event: Event) -> None:
        self.events.append(event)
        self._due = len(self.events)
        self._wake()
        self._tell(event)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.set()


def new_row(task: str, model: str | None, request: dict[str, Any], caller: str) -> Row:
    """The stored form of a job that was just accepted."""
    return {
        "id": new_job_id(),
        "task": task,
        "model": model,
        "status": "queued",
        "created_at": utc_now(),
        "started_at": None,
        "ended_at": None,
        "caller": caller,
        "request": request,
        "output": asdict(Output()),
        "error": None,
        "receipt": None,
        "reserved": ID_BLOCK,
    }


def stored_view(row: Row) -> dict[str, Any]:
    """The Job of a stored row."""
    return _view(row, asdict(Output()) | row["output"], None, row["error"], row["receipt"])


def without_text(job: dict[str, Any]) -> dict[str, Any]:
    """The Job as lists show it: without text, and without the result of a benchmark."""
    return {**job, "output": {**job["output"], "text": None, "result": None, "lyrics": None}}


def _view(row: Row, output: Row, progress: Any, error: Any, receipt: Any) -> dict[str, Any]:
    names = ("id", "task", "model", "status", "created_at", "started_at", "ended_at")
    shown = Job(**{name: row[name] for name in names}, progress=progress, error=error, receipt=receipt)
    return {**asdict(shown), "request": row["request"], "output": output}  # as they are: copying megabytes takes time
