"""The registry of jobs: the live ones and those in the history."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from backend.common import errors
from backend.common.commands import command
from backend.common.config.settings.schema import Task
from backend.common.errors import TouchstoneError
from backend.common.timestamps import timestamp
from backend.common.types import ACTIVE, MAINTENANCE, TERMINAL, Event, JobStatus, JsonObject, Problem, Receipt
from backend.jobs.event_bus import EventBus
from backend.jobs.live_job import ID_BLOCK, JobView, LiveJob, seed_job_ids, stored_view, without_text
from backend.jobs.store.schema import Row
from backend.jobs.store.sqlite import JobStore

log = logging.getLogger(__name__)
PAGE, PAGE_LIMIT = 50, 200  # jobs in one response: default, limit
FLUSH_S = 0.1  # between two writes of events
ENDING_S = 2.0  # timeout of the running jobs when the server stops
KEY_LIFE = timedelta(days=1)
Work = Coroutine[Any, Any, None]
_RECEIPTS: TypeAdapter[Receipt | None] = TypeAdapter(Receipt | None)


class JobRegistry:
    """Keeps every accepted job until it has ended and is stored. Looks up the others in the history."""

    def __init__(
        self, store: JobStore, feed: EventBus | None = None, on_end: Callable[[JobView], None] = lambda _: None
    ) -> None:
        """`on_end` is a callback for each Job that has ended. Optional."""
        self._store = store
        self._on_end = on_end
        self.feed = feed or EventBus()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._adding = 0  # jobs that are being stored, which count for the position in the queue
        self._stages: dict[str, str] = {}  # the status of each job that has not ended, from its events
        self._tally: Counter[str] = Counter()
        self._closing = False
        self.live: dict[str, LiveJob] = {}
        self.storage_error: TouchstoneError | None = None  # why the last write failed

    @property
    def corrupt_backup(self) -> Path | None:
        """The folder with a history that was found corrupt at the start. Optional."""
        return self._store.set_aside

    async def open(self) -> list[LiveJob]:
        """Open the history and return the queued jobs, in order.

        Running jobs of a server that died become `interrupted`. Raises Configuration for an unusable folder.
        """
        await self._store.open()
        seed_job_ids(await self._store.newest_id())
        queued = []
        rows = await self._store.jobs(statuses=ACTIVE, limit=1_000_000)
        await self._store.reserve(ID_BLOCK)
        for row in reversed(rows):
            job = LiveJob(self._store, row, await self._store.events(row["id"]), self._on_event)
            if row["status"] == "queued":
                self.live[job.id] = job
                self._set_stage(job.id, "queued")
                queued.append(job)
            else:
                await job.end("interrupted", interrupted().problem())
                self._on_end(job.view())
                if job.dirty:
                    self.live[job.id] = job
        self._flusher = asyncio.create_task(self._flush_often())
        if rows:
            log.info("jobs restored", extra={"queued": len(queued), "interrupted": len(rows) - len(queued)})
        return queued

    async def close(self) -> None:
        """End running jobs as `interrupted`. Queued jobs stay queued for the next start."""
        self._closing = True
        for job in self.live.values():
            if job.status == "queued":
                job.abandon()  # before the other jobs leave and change its position
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_S):
                for job in [job for job in self.live.values() if job.status != "queued"]:
                    await job.ended.wait()
        if self._flusher:
            self._flusher.cancel()
        for job in self.live.values():
            job.abandon()
        self.feed.close()
        await self._flush()
        await self._store.close()

    async def add(self, row: Row) -> LiveJob:
        """Store a new job and return it. Raises DiskFull or Internal."""
        job = LiveJob(self._store, row, on_event=self._on_event)
        self._adding += 1
        try:
            await job.accept(self.count("queued") + self._adding)
        finally:
            self._adding -= 1
        self.live[job.id] = job
        return job

    def supervise(self, job: LiveJob, work: Work, before_end: Callable[[], None] = lambda: None) -> None:
        """Run `work` in a task; its result or exception ends the job. `before_end` is called just before. Optional."""
        if self._closing:  # accepted while the server stops: the next start runs it
            work.close()
            job.abandon()
            return
        task = asyncio.create_task(self._run_to_end(job, work, before_end))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    def count(self, *statuses: str) -> int:
        """Return how many live jobs have one of these statuses."""
        return sum(self._tally[status] for status in statuses)

    async def view(self, job_id: str) -> JobView:
        """Return the Job as the API shows it. Raises UnknownJob."""
        if job := self.live.get(job_id):
            return job.view()
        return stored_view(await self._row(job_id))

    async def views(self, statuses: Iterable[str], task: str | None, limit: int, before: str | None) -> JsonObject:
        """Return a page of Jobs, newest first, without their text; `next` is the `before` of the next page.

        Raises Validation for an unknown status or task, and for a limit out of range.
        """
        statuses = list(statuses)
        _check_values("status", statuses, get_args(JobStatus))
        _check_values("task", [] if task is None else [task], (*get_args(Task), *MAINTENANCE))
        if not 1 <= limit <= PAGE_LIMIT:
            raise errors.Validation(f"limit: {limit} is out of range.", f"Send a limit of 1 to {PAGE_LIMIT}.")
        rows = await self._store.jobs(statuses=statuses, task=task, limit=limit + 1, before=before)
        shown = [self.live[row["id"]].view() if row["id"] in self.live else stored_view(row) for row in rows[:limit]]
        return {"jobs": [without_text(job) for job in shown], "next": shown[-1]["id"] if len(rows) > limit else None}

    async def find_by_key(self, key: str, request_hash: str) -> str | None:
        """Return the job made with this Idempotency-Key within a day. Raises Validation if the request differed."""
        row = await self._store.by_key(key, timestamp(KEY_LIFE))
        if row is None:
            return None
        if row["request_hash"] != request_hash:
            raise errors.Validation(
                f"The Idempotency-Key was used within a day for another request (job {row['id']}).",
                "Use a new key for a new request.",
            )
        return str(row["id"])

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[Event] | None:
        """Return the events above `after`, None if the terminal event is at or below it. Raises UnknownJob."""
        if job := self.live.get(job_id):
            last = job.events[-1]  # not the status, which changes before the terminal event is published
            is_over = last.event in TERMINAL and last.id <= after
            return None if is_over else job.follow(after)
        await self._row(job_id)
        events = await self._store.events(job_id)
        if events and events[-1].event in TERMINAL and events[-1].id <= after:
            return None
        return _replay(events, after)

    async def restored(self, job_id: str) -> LiveJob:
        """Return a job with its events: the live one, or one of the history as it ended. Raises UnknownJob."""
        if job := self.live.get(job_id):
            return job
        row = await self._row(job_id)
        job = LiveJob(self._store, row, await self._store.events(job_id))
        job.finish_reason = row["output"].get("finish_reason")
        job.receipt = _RECEIPTS.validate_python(row["receipt"])
        job.error = Problem(**row["error"]) if row["error"] else None
        job.ended.set()
        return job

    async def cancel(self, job_id: str) -> JobView:
        """Ask a job to end, log the request, and return the job. Raises UnknownJob, JobFinished."""
        job = self.live.get(job_id)
        if job is None or not job.active:
            view = await self.view(job_id)
            raise errors.JobFinished(
                f"The job {job_id} has already ended ({view['status']}).",
                f"It cannot be cancelled any more. To run it again: POST /api/jobs/{job_id}/rerun",
            )
        log.info("cancel requested", extra={"job": job_id, "status": job.status})
        job.cancelling.set()
        return job.view()

    async def delete(self, job_id: str) -> None:
        """Delete an ended job. Raises UnknownJob, JobActive."""
        if (job := self.live.get(job_id)) and job.active:
            raise errors.JobActive(f"The job {job_id} is {job.status}.", "Cancel it first, then delete it.")
        await self._row(job_id)
        await self._store.delete(job_id)
        self.live.pop(job_id, None)

    def _set_stage(self, job_id: str, stage: str) -> None:
        if before := self._stages.pop(job_id, None):
            self._tally[before] -= 1
        if stage in ACTIVE:
            self._stages[job_id] = stage
            self._tally[stage] += 1

    def _on_event(self, event: Event) -> None:
        if event.event in ACTIVE or event.event in TERMINAL:
            self._set_stage(event.data["job_id"], event.event)
        self.feed.publish(event.event, event.data)

    async def _row(self, job_id: str) -> Row:
        row = await self._store.job(job_id)
        if row is None:
            raise errors.UnknownJob(f"Unknown job {job_id[:100]!r}.", "List the jobs with GET /api/jobs.")
        return row

    async def _run_to_end(self, job: LiveJob, work: Work, before_end: Callable[[], None]) -> None:
        ending: tuple[JobStatus, TouchstoneError | None]
        try:
            await work
            ending = ("done", None)
        except errors.JobCancelled:
            ending = ("cancelled", None)
        except TouchstoneError as error:
            ending = ("error", error)
        except asyncio.CancelledError:
            if job.status == "queued":
                return  # the server stops; the next start runs the job
            ending = ("interrupted", interrupted())
        except Exception:
            log.exception("job failed with an unexpected exception", extra={"job": job.id})
            detail = "Unexpected internal error. The server's log has the traceback."
            remedy = f"Rerun the job. If it fails again, report it with the log: `{command('doctor --bundle')}`."
            ending = ("error", errors.Internal(detail, remedy))
        before_end()
        status, failure = ending
        job.failure = failure
        await asyncio.shield(asyncio.ensure_future(job.end(status, failure.problem() if failure else None)))
        self._on_end(job.view())
        device, code = job.receipt and job.receipt.used, failure.code if failure else None
        log.info("job ended", extra={"job": job.id, "device": device, "status": status, "code": code})
        if not job.dirty:
            self.live.pop(job.id, None)

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush()

    async def _flush(self) -> None:
        """Store the unsaved events and changes of all jobs in one transaction. Log when storage fails or recovers."""
        if dirty := [job for job in self.live.values() if job.dirty]:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    changes = [await stack.enter_async_context(job.writing()) for job in dirty]
                    await self._store.update_all(changes)
                if self.storage_error:
                    log.info("the history can be written again")
                self.storage_error = None
            except TouchstoneError as error:
                if self.storage_error is None:
                    log.error("the history cannot be written", extra={"code": error.code, "detail": error.detail})
                self.storage_error = error
        for job in [job for job in self.live.values() if job.ended.is_set() and not job.dirty]:
            self.live.pop(job.id, None)


def interrupted() -> errors.Interrupted:
    """Return the error of a job whose server stopped."""
    return errors.Interrupted(
        "The server stopped while the job was running.",
        "Rerun it: POST /api/jobs/{id}/rerun, or the button on the page.",
    )


async def _replay(events: list[Event], after: int) -> AsyncIterator[Event]:
    for event in events:
        if event.id > after:
            yield event


def _check_values(name: str, sent: Iterable[str], valid: Sequence[str]) -> None:
    if unknown := [value for value in sent if value not in valid]:
        raise errors.Validation(f"{name}: {unknown[0][:50]!r} is not a valid value.", f"Valid: {', '.join(valid)}.")
