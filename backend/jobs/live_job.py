"""A live job: its numbered events, its text so far, and the followers that replay the events and wait for more.

Events are durable before the next block of ids is used, and a terminal event is durable before a follower sees it. So a
crash of the server never reuses an id and never takes back an ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from backend.common.errors import TouchstoneError
from backend.common.timestamps import utc_now
from backend.common.types import (
    ACTIVE,
    MAINTENANCE,
    TERMINAL,
    Artifact,
    Event,
    Job,
    JobStatus,
    JsonObject,
    Output,
    Problem,
    Progress,
    Receipt,
)
from backend.jobs.job_request import JobRequest, RequestRow
from backend.jobs.store.schema import Change, Row
from backend.jobs.store.sqlite import JobStore
from backend.tasks.lyrics.structure import describe_lyrics

EventData = JsonObject  # JSON, as events are stored and sent
JobView = JsonObject  # a Job as JSON, as the API shows it
ID_BLOCK = 1000
_last_stamp = 0


class LiveJob:
    """A job that this server process has accepted and that has not ended. Used only from the manager's event loop."""

    def __init__(
        self,
        store: JobStore,
        row: Row,
        past: list[Event] | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`past` are the stored events of a job that an earlier server accepted. Optional.

        Its ids continue after those that the earlier server reserved; the store must have reserved another block.
        `on_event` is a callback for each new event, called once followers may see it. Optional.
        """
        self._store = store
        self._on_event = on_event
        self._row = row
        reserved: int = row["reserved"]
        self._ids = itertools.count(1 if past is None else reserved + 1)
        self._reserved = reserved if past is None else reserved + ID_BLOCK
        self.events: list[Event] = past or []
        self._written = self._to_write = len(self.events)  # how many events are stored, and how many shall be
        self._writing = asyncio.Lock()
        self._unsaved_fields: Row = {}  # changes of the job that are not stored yet
        self._text = replay_text(self.events)
        self._followers: set[asyncio.Event] = set()
        self.artifacts = replay_artifacts(self.events)
        self.finish_reason: str | None = None
        self.result: JsonObject | None = None
        self.lyrics: JsonObject | None = None
        self.progress: Progress | None = None
        self.receipt: Receipt | None = None
        self.error: Problem | None = None
        self.failure: TouchstoneError | None = None  # with the extra members that a Problem leaves out
        self.cancelling = asyncio.Event()
        self.ended = asyncio.Event()
        self.accepted_at = time.perf_counter()

    @property
    def id(self) -> str:
        """The job's id, opaque and sortable by creation."""
        return str(self._row["id"])

    @property
    def task(self) -> str:
        """The task: one of the catalogue, or one of MAINTENANCE."""
        return str(self._row["task"])

    @property
    def caller(self) -> str:
        """The caller, for fairness between callers."""
        return str(self._row["caller"])

    @cached_property
    def request(self) -> JobRequest:
        """The request of a job that a worker runs. The others have `parameters`."""
        return JobRequest.from_row(self.task, self._row["request"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The stored request of a maintenance job, as JSON."""
        request: Mapping[str, Any] = self._row["request"]
        return request

    def input_files(self) -> Iterable[str]:
        """Return the ids of the uploads that the job reads."""
        return () if self.task in MAINTENANCE else self.request.input_files()

    @property
    def model(self) -> str | None:
        """The model's id, None for a job without a model."""
        model: str | None = self._row["model"]
        return model

    @property
    def text(self) -> str:
        """The text generated since the last fallback."""
        return "".join(self._text)

    @property
    def started_at(self) -> str:
        """The timestamp at which the job left the queue; before that, of its creation."""
        return str(self._row["started_at"] or self._row["created_at"])

    @property
    def status(self) -> JobStatus:
        """The current status."""
        status: JobStatus = self._row["status"]
        return status

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return self.status in ACTIVE

    async def accept(self, position: int) -> None:
        """Store the job with its first event. Raises DiskFull or Internal."""
        event = self._new_event("queued", {"position": position})
        await self._store.add(self._row, [event])
        self._written = 1
        self._publish(event)

    async def emit(self, event: str, data: EventData) -> None:
        """Append an event and wake the followers. `flush` stores it."""
        if event == "token":
            self._text.append(data["text"])
        elif event == "artifact":
            self.artifacts.append(Artifact(**data))
        elif event == "fallback":
            self._text.clear()
            self.artifacts.clear()
        await self._append(self._new_event(event, data))

    def set_queue_position(self, position: int, expected_s: float | None) -> None:
        """Set the position in the queue, with the expected wait in seconds.

        The event is stored with the job's next change of status: after a crash the position differs anyway. A waiting
        job has few events, so their ids are always reserved.
        """
        if self.ended.is_set():
            return
        self.progress = Progress("queue", 0, position, "jobs", expected_s)
        to_write = self._to_write
        self._publish(self._new_event("progress", asdict(self.progress)))
        self._to_write = to_write

    async def set_status(self, status: JobStatus, data: EventData) -> None:
        """Set the status to `queued`, `loading` or `running`, durably. Raises DiskFull or Internal."""
        self._row["status"] = status
        self.progress = None
        if status != "queued" and not self._row["started_at"]:
            self._row["started_at"] = utc_now()
        await self._append(self._new_event(status, data))
        await self.flush({"status": status, "started_at": self._row["started_at"], "reserved": self._reserved})

    async def end(self, status: JobStatus, error: Problem | None = None) -> None:
        """Set a terminal status: first stored, then published. A second call has no effect."""
        if not self.active:
            return
        assert status in TERMINAL
        self.error = error
        self.progress = None
        if self.task == "lyrics" and self._text:
            language = (self.request.options or {})["language"]
            self.lyrics = {**await asyncio.to_thread(describe_lyrics, self.text, language)}
        self._row.update(status=status, ended_at=utc_now())
        view = self.view()
        event = self._new_event(status, asdict(error) if error else view)
        self._reserved = max(self._reserved, event.id)
        fields = {name: view[name] for name in ("status", "started_at", "ended_at", "output", "error", "receipt")}
        try:
            await self.flush({**fields, "reserved": self._reserved}, event)
        except TouchstoneError as failure:
            # The store cannot take it now. In this process the job has ended anyway, with the reason.
            self.error = error or failure.problem()
            self._row["status"] = status = "error" if status == "done" else status
            self._unsaved_fields |= {"status": status, "error": asdict(self.error)}
            event = Event(event.id, status, {"job_id": self.id, "at": event.data["at"], **asdict(self.error)})
        else:
            self._written += 1
        self.ended.set()
        self._publish(event)

    async def flush(self, fields: Row | None = None, last: Event | None = None) -> None:
        """Store the events that are not stored yet, and changes of the job itself. Raises DiskFull or Internal."""
        async with self.writing(fields, last) as change:
            await self._store.update(*change)

    @contextlib.asynccontextmanager
    async def writing(self, fields: Row | None = None, last: Event | None = None) -> AsyncIterator[Change]:
        """Yield what is to be stored. If the body raises an exception, the change is kept for the next write."""
        async with self._writing:  # two writes at once could not tell what each of them stored
            new_events = self.events[self._written :]
            unsaved = self._unsaved_fields | (fields or {})
            self._written += len(new_events)
            self._unsaved_fields = {}
            try:
                yield self.id, unsaved, [*new_events, *([last] if last else [])]
            except BaseException:  # a cancel too: storing the same events again is harmless
                self._written -= len(new_events)
                self._unsaved_fields = unsaved | self._unsaved_fields
                raise

    @property
    def dirty(self) -> bool:
        """Whether something is not stored yet, or is being stored and may fail."""
        return self._written < self._to_write or bool(self._unsaved_fields) or self._writing.locked()

    def abandon(self) -> None:
        """End all followers without an ending of the job: the server stops and the job stays queued."""
        self.ended.set()
        self._wake()

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events with ids above `after`, past and future ones, up to the terminal one."""
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

    def view(self) -> JobView:
        """Return the Job as the API shows it."""
        text = self.text if self._text else None
        output = Output(text, self.finish_reason, self.artifacts, self.result, self.lyrics)
        return _view(self._row, asdict(output), self.progress, self.error, self.receipt)

    def _new_event(self, event: str, data: EventData) -> Event:
        return Event(next(self._ids), event, {"job_id": self.id, "at": utc_now(), **data})

    async def _append(self, event: Event) -> None:
        while event.id > self._reserved:
            await self._store.update(self.id, {"reserved": self._reserved + ID_BLOCK})
            self._reserved += ID_BLOCK
        self._publish(event)

    def _publish(self, event: Event) -> None:
        self.events.append(event)
        self._to_write = len(self.events)
        self._wake()
        self._on_event(event)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.set()


def new_row(task: str, model: str | None, request: RequestRow, caller: str) -> Row:
    """Return the stored form of a job that was just accepted; `request` as it is stored and shown."""
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


def stored_view(row: Row) -> JobView:
    """Return the Job of a stored row as the API shows it."""
    return _view(row, asdict(Output()) | row["output"], None, row["error"], row["receipt"])


def without_text(job: JobView) -> JobView:
    """Return the Job as lists show it: without text, lyrics and the result of a benchmark."""
    return {**job, "output": {**job["output"], "text": None, "result": None, "lyrics": None}}


def _view(row: Row, output: Row, progress: Any, error: Any, receipt: Any) -> JobView:
    names = ("id", "task", "model", "status", "created_at", "started_at", "ended_at")
    shown = Job(**{name: row[name] for name in names}, progress=progress, error=error, receipt=receipt)
    return {**asdict(shown), "request": row["request"], "output": output}  # not copied: they may be megabytes


def new_job_id() -> str:
    """Return an opaque id that sorts by creation: milliseconds that never go back, and 40 random bits."""
    global _last_stamp
    _last_stamp = max(_last_stamp + 1, time.time_ns() // 1_000_000)
    return f"{_last_stamp:011x}{secrets.token_hex(5)}"


def seed_job_ids(newest: str | None) -> None:
    """Make new ids sort after `newest`, even if the clock was set back. None: no earlier job exists."""
    global _last_stamp
    _last_stamp = max(_last_stamp, int(newest[:11], 16) if newest else 0)


def replay_text(events: Iterable[Event]) -> list[str]:
    """Return the pieces of text since the last fallback."""
    pieces: list[str] = []
    for event in events:
        if event.event == "token":
            pieces.append(event.data["text"])
        elif event.event == "fallback":
            pieces.clear()
    return pieces


def replay_artifacts(events: Iterable[Event]) -> list[Artifact]:
    """Return the artifacts made since the last fallback."""
    artifacts: list[Artifact] = []
    for event in events:
        if event.event == "artifact":
            artifacts.append(Artifact(**{name: event.data[name] for name in ("name", "media_type", "bytes", "url")}))
        elif event.event == "fallback":
            artifacts.clear()
    return artifacts
