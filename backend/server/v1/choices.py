"""The jobs behind one request: n choices are n jobs, accepted together, waited for together, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from fastapi import Request

from backend.common.errors import Interrupted, QueueFull, TouchstoneError, from_code
from backend.common.types import TERMINAL
from backend.jobs.executor import cancelled
from backend.jobs.live_job import LiveJob
from backend.jobs.request import GenerateRequest
from backend.manager import ModelManager
from backend.server.disconnect import cancel_on_disconnect


class Choices:
    """The jobs of one request, in the order of its choices."""

    def __init__(self, jobs: Sequence[LiveJob], asked: str) -> None:
        self.jobs = tuple(jobs)
        self._asked = asked

    @classmethod
    async def accept(cls, manager: ModelManager, requests: Sequence[GenerateRequest], caller: str) -> Choices:
        """Accepts all the jobs, or none. Raises QueueFull, DiskFull, and what `admitted` raises."""
        limit = manager.settings.queue.limit
        if len(requests) > 1 and manager.registry.count("queued") + len(requests) > limit:
            detail = f"With these {len(requests)} jobs more would be waiting than the limit of {limit}."
            raise QueueFull(detail, "Ask for fewer choices, try again later, or raise queue.limit.", retry_after_s=10)
        jobs: list[LiveJob] = []
        try:
            for request in requests:
                job = await manager.submit(request, caller)
                assert isinstance(job, LiveJob), "only a request with an Idempotency-Key gives an id"
                jobs.append(job)
        except BaseException:
            for job in jobs:
                job.cancelling.set()
            raise
        return cls(jobs, requests[0].asked_device)

    def cancel(self) -> None:
        """Asks all jobs that still live to end."""
        for job in self.jobs:
            job.cancelling.set()

    async def begun(self, request: Request) -> bool:
        """Waits until the first job computes, or one has failed; False if the caller left before."""
        failing = [_failed(job) for job in self.jobs[1:]]
        return await self._waited(request, _begun(self.jobs[0]), *failing)

    async def ended(self, request: Request) -> bool:
        """Waits until all jobs have ended, or one has failed; False if the caller left before."""
        return await self._waited(request, _all_ended(self.jobs), *(_failed(job) for job in self.jobs))

    async def _waited(self, request: Request, *waited: Awaitable[None]) -> bool:
        """Waits for the first of them. If the caller left, or a job failed, the jobs that live are cancelled."""
        stays = await cancel_on_disconnect(request, *waited)
        if not stays or self.failure():
            self.cancel()
        return stays

    def failure(self) -> TouchstoneError | None:
        """What the first of the jobs that failed ended with."""
        return next(filter(None, map(failure_of, self.jobs)), None)

    def headers(self) -> dict[str, str]:
        """Where the jobs run, as far as it is known, and their ids: the first one's, and of several all."""
        receipt = self.jobs[0].receipt
        found = {
            "X-Job-Id": self.jobs[0].id,
            "X-Device-Asked": self._asked.encode("ascii", "replace").decode(),
            "X-Device-Used": (receipt.used if receipt else None) or "unknown",
        }
        return found | ({"X-Job-Ids": ", ".join(job.id for job in self.jobs)} if len(self.jobs) > 1 else {})


def failure_of(job: LiveJob) -> TouchstoneError | None:
    """What a job failed with; None if it is done, or lives."""
    if job.status == "done" or not job.ended.is_set():
        return None
    if job.error:
        return job.failure or from_code(job.error.code, job.error.detail, job.error.remedy)
    if job.active:  # the server stops, and the job waits for the next one; but who asked is gone then
        return Interrupted("The server stopped while the job was waiting.", "Ask again after the next start.")
    return cancelled()


async def _begun(job: LiveJob) -> None:
    """Returns once the worker computes: it has the model then, and has not refused the request."""
    has_model = False
    async for event in job.follow():
        if event.event in ("running", "fallback"):
            has_model = event.event == "running"
        if event.event in TERMINAL or (has_model and event.event in ("progress", "token")):
            return


async def _all_ended(jobs: Sequence[LiveJob]) -> None:
    for job in jobs:
        await job.ended.wait()


async def _failed(job: LiveJob) -> None:
    """Returns if the job fails, and never if it does not."""
    await job.ended.wait()
    if failure_of(job) is None:
        await asyncio.Event().wait()
