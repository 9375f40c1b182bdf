"""What a worker is asked for a job, and how all that it sends becomes the job's events, progress, files, receipt."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Protocol
from urllib.parse import quote

from backend.common.seeds import random_seed
from backend.common.types import Artifact, JobStatus, Progress, Receipt
from backend.engines import RunRequest
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.receipt import ReceiptBuilder
from backend.models import Entry
from backend.models.details import licence
from backend.tasks.music.prompt_parser import Understood
from backend.tasks.options import completed
from backend.tasks.options.lyrics import parted

TOKEN = ("text", "count", "logprobs")


class JobSink(Protocol):
    """What a run tells: a live job, or the share of one that is done on several devices."""

    progress: Progress | None
    finish_reason: str | None
    receipt: Receipt | None
    cancelling: asyncio.Event
    accepted_at: float

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def request(self) -> dict[str, Any]: ...
    def set_queue_position(self, position: int, expected_s: float | None) -> None: ...
    async def emit(self, event: str, data: dict[str, Any]) -> None: ...
    async def set_status(self, status: JobStatus, data: dict[str, Any]) -> None: ...
    async def flush(self) -> None: ...


class WorkerEventHandler:
    """Takes the frames of one attempt, in order."""

    def __init__(self, job: JobSink, ledger: ReceiptBuilder) -> None:
        self._job = job
        self._ledger = ledger
        self._phase = ""
        self._began = time.perf_counter()
        self._first = 0.0

    async def report_loading(self, held_bytes: int, needed_bytes: int | None) -> None:
        """How much of the memory that the model will need, where that is known, its worker holds."""
        done = min(held_bytes, needed_bytes) if needed_bytes else held_bytes
        await self.handle({"op": "progress", "phase": "load", "done": done, "total": needed_bytes, "unit": "bytes"})

    async def handle(self, frame: dict[str, Any]) -> None:
        """One frame of the worker."""
        job = self._job
        if frame["op"] == "token":
            await job.emit("token", {name: frame[name] for name in TOKEN if name in frame})
        elif frame["op"] == "progress":
            job.progress = self._progress(frame)
            await job.emit("progress", asdict(job.progress))
        elif frame["op"] == "artifact":
            url = f"/api/jobs/{job.id}/artifacts/{quote(frame['name'])}"
            made = Artifact(frame["name"], frame["media_type"], frame["bytes"], url)
            await job.emit("artifact", asdict(made))
            await job.flush()  # a finished file is known after any crash
        elif frame["op"] == "done":
            job.finish_reason = frame["finish_reason"]
            self._ledger.record_result(frame)

    def _progress(self, frame: dict[str, Any]) -> Progress:
        """How far, and how long still at the pace of this phase, which may be one that comes again."""
        phase, done, total = frame["phase"], frame["done"], frame["total"]
        if self._phase and phase != self._phase:
            self._began, self._first = time.perf_counter(), done
        self._phase = phase
        spent_s, came = time.perf_counter() - self._began, done - self._first
        eta_s = spent_s / came * (total - done) if came > 0 and total else 0.0 if done and done == total else None
        return Progress(phase, done, total, frame["unit"], eta_s)


@contextlib.asynccontextmanager
async def open_output_dir(artifacts: ArtifactStore, job_id: str) -> AsyncIterator[str]:
    """A job's folder, empty at first; in the end only what the worker handed over stays in it."""
    await asyncio.to_thread(artifacts.begin, job_id)
    try:
        yield str(artifacts.folder(job_id))
    finally:
        await asyncio.to_thread(artifacts.finish, job_id)


def build_run_request(job: JobSink, entry: Entry) -> RunRequest | None:
    """What the worker is to run; None for a job that only loads."""
    options = job.request.get("options")
    if options is None:
        return None
    chosen: int | None = options.get("seed")
    whole, song = completed(entry.options_for(job.task), options), None
    if job.task == "lyrics":
        song, sampled = parted(whole)
        whole = completed("text", sampled)  # what an engine looks for is there, at its default
    return RunRequest(
        messages=job.request.get("messages"),
        prompt=job.request.get("prompt"),
        texts=job.request.get("texts"),
        inputs=job.request.get("inputs") or {},
        options=whole,
        song=song,
        seed=random_seed() if chosen is None else chosen,
        reuse_cache=chosen is None,  # with a seed the caller wants the same text again
        preface=Understood(job.request.get("understood", {}), job.request.get("ignored", [])).sentence(),
        model=entry.id,
        licence=entry.licence or licence(entry.target),
    )
