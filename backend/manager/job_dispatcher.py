"""The registry of job handlers: which service runs the jobs of which task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from backend.common.errors import TouchstoneError, Validation
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import JobRegistry

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobWork:
    """What runs an accepted job. `before_end` is called just before the job's terminal event."""

    work: Coroutine[Any, Any, None]
    before_end: Callable[[], None] = lambda: None


# Returns the work of an accepted job, perhaps accepted by an earlier server. Raises a TouchstoneError if it cannot run.
JobHandler = Callable[[LiveJob], JobWork]


class StartJob(Protocol):
    """Starts an accepted job by the handler of its task."""

    def __call__(self, job: LiveJob, **fields: object) -> None: ...


class JobDispatcher:
    """Starts accepted jobs by the handler of their task. A new kind of job is one more entry of `handlers`."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        self.handlers: Mapping[str, JobHandler] = {}

    def start(self, job: LiveJob, **fields: object) -> None:
        """Log and run a job that was just accepted. Optional: more `fields` of the log line."""
        log.info("job accepted", extra={"job": job.id, "task": job.task, "model": job.model, **fields})
        self._run(job)

    def resume(self, job: LiveJob) -> None:
        """Log and run a queued job of an earlier server. It fails if its task, model or device no longer exists."""
        log.info("job resumed", extra={"job": job.id, "task": job.task, "model": job.model})
        self._run(job)

    def _run(self, job: LiveJob) -> None:
        try:
            work = self._handler(job.task)(job)
        except TouchstoneError as error:
            self._registry.supervise(job, _fail(error))
            return
        self._registry.supervise(job, work.work, work.before_end)

    def _handler(self, task: str) -> JobHandler:
        try:
            return self.handlers[task]
        except KeyError:
            raise Validation(
                f"This version of Touchstone has no handler for jobs of the task {task[:50]!r}.",
                f"Send a new request; tasks of this version: {', '.join(self.handlers)}.",
            ) from None


async def _fail(error: TouchstoneError) -> None:
    raise error
