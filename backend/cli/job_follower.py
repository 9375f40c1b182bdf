"""Follows a job to its end with a bar, wherever the manager is; leaving early cancels it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from backend.cli.progress_bar import ProgressBar
from backend.common.errors import JobCancelled, TouchstoneError, from_code
from backend.common.types import TERMINAL, Event, Progress

if TYPE_CHECKING:
    from backend.cli.client import Client
    from backend.manager import ModelManager


async def generated(
    client: Client,
    body: dict[str, Any],
    bar: ProgressBar,
    progress: Callable[[Progress], object] | None = None,
    words: Callable[[str], object] | None = None,
) -> tuple[Event, dict[str, Any]]:
    """Runs a job; its last event and the Job. A fallback is said below the bar; `progress` goes to it if not told."""
    show = progress or bar.show
    last = None
    async for last in client.generate(body):
        if last.event == "fallback":
            bar.say(f"! {last.data['from']} could not be used: {last.data['reason']}")
        elif last.event == "progress":
            show(progress_of(last))
        elif last.event == "token" and words:
            words(last.data["text"])
    assert last is not None, "a job's events end with a terminal one"
    return last, await client.job(last.data["job_id"])


def progress_of(event: Event) -> Progress:
    """What an event of that name tells."""
    return Progress(**{field.name: event.data[field.name] for field in fields(Progress)})


class Source(Protocol):
    """Who has the job: the server, or a manager of our own."""

    async def cancel(self, job_id: str) -> None: ...
    def follow(self, job_id: str) -> AsyncIterator[Event]: ...


class Here:
    """A manager in this process."""

    def __init__(self, manager: ModelManager) -> None:
        self.manager = manager

    async def cancel(self, job_id: str) -> None:
        """Asks the job to end."""
        await self.manager.registry.cancel(job_id)

    async def follow(self, job_id: str) -> AsyncIterator[Event]:
        """The events of the job."""
        events = await self.manager.follow(job_id)
        assert events is not None, "from the first one on there are events"
        async for event in events:
            yield event


async def follow_to_end(
    source: Source, job_id: str, bar: ProgressBar, again: str = "Start it again."
) -> dict[str, Any]:
    """The Job after its end. Raises what it ended with, for a cancelled one JobCancelled with `again` as its remedy."""
    last: Event | None = None
    try:
        async for last in source.follow(job_id):
            if last.event == "progress":
                bar.show(progress_of(last))
    finally:
        if last is None or last.event not in TERMINAL:
            with contextlib.suppress(TouchstoneError):  # it may have ended just now
                await source.cancel(job_id)
    assert last is not None, "a job's events end with a terminal one"
    if last.event in ("error", "interrupted"):
        raise from_code(last.data["code"], last.data["detail"], last.data["remedy"])
    if last.event == "cancelled":
        raise JobCancelled("The job was cancelled.", again)
    return last.data
