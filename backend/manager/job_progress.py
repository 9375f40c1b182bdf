"""Helpers for jobs that the manager runs itself, without a worker: progress, and waiting for a lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from backend.common.types import Progress
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob


def report_progress(job: LiveJob) -> Callable[[Progress], Awaitable[None]]:
    """Return a callback that sets a job's progress and emits it as an event."""

    async def report(progress: Progress) -> None:
        job.progress = progress
        await job.emit("progress", vars(progress))

    return report


@contextlib.asynccontextmanager
async def hold_lock(job: LiveJob, lock: asyncio.Lock) -> AsyncIterator[None]:
    """Acquire a lock; a cancel of the job ends the wait."""
    await cancel_on(job.cancelling, lock.acquire(), cancelled)
    try:
        yield
    finally:
        lock.release()
