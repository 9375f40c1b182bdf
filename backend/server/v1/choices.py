"""The jobs of one request: n choices are n jobs that are accepted, awaited and cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from fastapi import Request

from backend.common.errors import Interrupted, QueueFull, TouchstoneError, from_code
from backend.common.types import TERMINAL
from backend.jobs.executor import cancelled
from backend.jobs.generate_request import GenerateRequest
from backend.jobs.live_job import LiveJob
from backend.manager import ModelManager
from backend.server.disconnect import cancel_on_disconnect
from backend.server.v1.errors import renamed


class Choices:
    """The jobs of one request, in the order of its choices."""

    def __init__(
        self, jobs: Sequence[LiveJob], asked: str, names: Mapping[str, str] | None = None, outlives: bool = False
    ) -> None:
        """`names`: optional, the caller's keys by the keys of the jobs' requests, for errors.

        `outlives`: the jobs go on if the caller disconnects, since a retry can fetch their result.
        """
        self._outlives = outlives
        self.jobs = tuple(jobs)
        self._asked = asked
        self._names = names or {}

    @classmethod
    async def accept(
        cls,
        manager: ModelManager,
        requests: Sequence[GenerateRequest],
        caller: str,
        names: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Choices:
        """Accept all jobs, or none. With an Idempotency-Key that made jobs before, return those.

        Raises QueueFull, DiskFull, and what `admit` raises.
        """
        limit = manager.settings.queue.limit
        if len(requests) > 1 and manager.registry.count("queued") + len(requests) > limit:
            detail = f"These {len(requests)} jobs would exceed the limit of {limit} queued jobs."
            raise QueueFull(detail, "Request fewer choices, retry later, or raise queue.limit.", retry_after_s=10)
        jobs: list[LiveJob] = []
        try:
            for number, request in enumerate(requests):
                each_key = f"{key}#{number}" if key and number else key
                job = await manager.generation.submit(request, caller, each_key)
                jobs.append(await manager.registry.restored(job) if isinstance(job, str) else job)
        except BaseException as error:
            for job in jobs:
                job.cancelling.set()
            if isinstance(error, TouchstoneError):
                raise renamed(error, names or {}) from error
            raise
        return cls(jobs, requests[0].asked_device, names, outlives=key is not None)

    def cancel(self) -> None:
        """Cancel all jobs that have not ended."""
        for job in self.jobs:
            job.cancelling.set()

    def leave(self) -> None:
        """Cancel the jobs because the caller disconnected, unless a retry can fetch their result."""
        if not self._outlives:
            self.cancel()

    async def wait_for_start(self, request: Request, limit_s: float) -> bool:
        """Wait until the first job computes, any job failed, or the limit passed.

        Returns False if the caller disconnected before.
        """
        failing = [_wait_for_failure(job) for job in self.jobs[1:]]
        return await self._wait_for_first(request, _wait_for_start(self.jobs[0]), *failing, asyncio.sleep(limit_s))

    async def wait_for_end(self, request: Request) -> bool:
        """Wait until all jobs ended, or any job failed. Returns False if the caller disconnected before."""
        return await self._wait_for_first(
            request, _wait_for_all(self.jobs), *(_wait_for_failure(job) for job in self.jobs)
        )

    async def _wait_for_first(self, request: Request, *awaitables: Awaitable[None]) -> bool:
        """Wait for the first of the awaitables. Cancels the jobs if the caller disconnected or a job failed."""
        is_connected = await cancel_on_disconnect(request, *awaitables)
        if not is_connected:
            self.leave()
        elif self.failure():
            self.cancel()
        return is_connected

    def failure(self) -> TouchstoneError | None:
        """Return the error of the first failed job, None if no job failed."""
        error = next(filter(None, map(failure_of, self.jobs)), None)
        return renamed(error, self._names) if error else None

    def failure_of(self, job: LiveJob) -> TouchstoneError | None:
        """Return the error of one of the jobs with the caller's keys; None if it did not fail."""
        error = failure_of(job)
        return renamed(error, self._names) if error else None

    def headers(self) -> dict[str, str]:
        """Return the response headers with the devices and job ids; `X-Job-Ids` lists the ids of several jobs."""
        receipt = self.jobs[0].receipt
        headers = {
            "X-Job-Id": self.jobs[0].id,
            "X-Device-Asked": self._asked.encode("ascii", "replace").decode(),
            "X-Device-Used": (receipt.used if receipt else None) or "unknown",
        }
        return headers | ({"X-Job-Ids": ", ".join(job.id for job in self.jobs)} if len(self.jobs) > 1 else {})


def failure_of(job: LiveJob) -> TouchstoneError | None:
    """Return the error of a job; None if it is done or has not ended."""
    if job.status == "done" or not job.ended.is_set():
        return None
    if job.error:
        return job.failure or from_code(job.error.code, job.error.detail, job.error.remedy)
    if job.active:  # the next start runs the job, but this caller cannot receive its result
        return Interrupted("The server stopped while the job was queued.", "Send the request again after the restart.")
    return cancelled()


async def _wait_for_start(job: LiveJob) -> None:
    """Return when the worker computes: the model is loaded then, and the request was not refused."""
    has_model = False
    async for event in job.follow():
        if event.event in ("running", "fallback"):
            has_model = event.event == "running"
        if event.event in TERMINAL or (has_model and event.event in ("progress", "token")):
            return


async def _wait_for_all(jobs: Sequence[LiveJob]) -> None:
    for job in jobs:
        await job.ended.wait()


async def _wait_for_failure(job: LiveJob) -> None:
    """Return when the job fails. Never returns if it succeeds."""
    await job.ended.wait()
    if failure_of(job) is None:
        await asyncio.Event().wait()
