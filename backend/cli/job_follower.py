"""Follows a job to its end with a progress bar, in the server or in this process. Leaving early cancels the job."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from backend.cli.progress_bar import ProgressBar
from backend.common.errors import JobCancelled, TouchstoneError, from_code
from backend.common.types import TERMINAL, Event, JsonObject, Progress

if TYPE_CHECKING:
    from backend.cli.client import Client
    from backend.manager import ModelManager


async def generate_with_progress(
    client: Client,
    body: JsonObject,
    bar: ProgressBar,
    on_progress: Callable[[Progress], object] | None = None,
    on_text: Callable[[str], object] | None = None,
) -> tuple[Event, JsonObject]:
    """Run a job and return its last event and the Job. A fallback is reported below the bar.

    Optional callbacks: `on_progress` (default: the bar), `on_text` for the text of each token event.
    """
    show = on_progress or bar.show
    last = None
    async for last in client.generate(body):
        if last.event == "fallback":
            bar.print_line(f"! {last.data['from']} could not be used: {last.data['reason']}")
        elif last.event == "progress":
            show(parse_progress(last))
        elif last.event == "token" and on_text:
            on_text(last.data["text"])
    assert last is not None, "a job's events end with a terminal one"
    return last, await client.job(last.data["job_id"])


def parse_progress(event: Event) -> Progress:
    """Return the progress that a `progress` event carries."""
    return Progress(**{field.name: event.data[field.name] for field in fields(Progress)})


class JobSource(Protocol):
    """Where a job runs: in the server, or in a manager in this process."""

    async def cancel(self, job_id: str) -> None: ...
    def follow(self, job_id: str) -> AsyncIterator[Event]: ...


class ManagerJobs:
    """The jobs of a manager in this process."""

    def __init__(self, manager: ModelManager) -> None:
        self.manager = manager

    async def cancel(self, job_id: str) -> None:
        """Request the job to end."""
        await self.manager.registry.cancel(job_id)

    async def follow(self, job_id: str) -> AsyncIterator[Event]:
        """Yield all events of the job."""
        events = await self.manager.follow(job_id)
        assert events is not None, "only a request for events after the last one has none"
        async for event in events:
            yield event


async def follow_to_end(
    source: JobSource, job_id: str, bar: ProgressBar, retry_remedy: str = "Start it again."
) -> JsonObject:
    """Follow a job and return the finished Job.

    Raises the error that the job ends with; for a cancelled job JobCancelled with `retry_remedy`.
    """
    last: Event | None = None
    try:
        async for last in source.follow(job_id):
            if last.event == "progress":
                bar.show(parse_progress(last))
    finally:
        if last is None or last.event not in TERMINAL:
            with contextlib.suppress(TouchstoneError):  # the job may have ended in this moment
                await source.cancel(job_id)
    assert last is not None, "a job's events end with a terminal one"
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    if last.event == "cancelled":
        raise JobCancelled("The job was cancelled.", retry_remedy)
    return last.data
