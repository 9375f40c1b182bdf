"""Frames of a worker become the progress of its job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.jobs.worker_events import JobSink, WorkerEventHandler


@pytest.mark.parametrize(("task", "progress"), [("text", ("write", 5, None, "tokens")), ("lyrics", None)])
def test_a_text_job_reports_what_it_writes(task: str, progress: Any) -> None:
    async def emit(event: str, data: Any) -> None:
        events.append((event, data))

    events: list[Any] = []
    job = SimpleNamespace(task=task, progress=None, emit=emit)
    handler = WorkerEventHandler(cast(JobSink, job), cast(Any, None))
    for count in (2, 3):
        asyncio.run(handler.handle({"op": "token", "text": "x", "count": count}))
    found = job.progress
    assert (found and (found.phase, found.done, found.total, found.unit)) == progress
    assert events == [("token", {"text": "x", "count": count}) for count in (2, 3)], "no further events"
