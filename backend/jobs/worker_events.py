"""Worker events: the request to a worker, and how its frames become the job's events, progress, files and receipt."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Protocol
from urllib.parse import quote

from backend.child.wire_protocol import Frame
from backend.common.clean_text import clean_name
from backend.common.commands import command
from backend.common.errors import WorkerCrashed
from backend.common.seeds import SEEDS
from backend.common.types import Artifact, JobStatus, Progress, Receipt
from backend.engines import RunRequest
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.job_request import JobRequest
from backend.jobs.live_job import EventData
from backend.jobs.receipt import ReceiptBuilder
from backend.jobs.uploads import MEDIA_TYPE, NAME_LIMIT
from backend.models import Entry
from backend.tasks.options import fill_defaults
from backend.tasks.options.lyrics import split_song_options

TOKEN = ("text", "count", "logprobs")


class JobSink(Protocol):
    """What an executor writes to: a live job, or one share of a job on several devices."""

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
    def request(self) -> JobRequest: ...
    def set_queue_position(self, position: int, expected_s: float | None) -> None: ...
    async def emit(self, event: str, data: EventData) -> None: ...
    async def set_status(self, status: JobStatus, data: EventData) -> None: ...
    async def flush(self) -> None: ...


class WorkerEventHandler:
    """Handles the frames of one attempt, in order."""

    def __init__(self, job: JobSink, receipt: ReceiptBuilder) -> None:
        self._job = job
        self._receipt = receipt
        self._phase = ""
        self._phase_started_at = time.perf_counter()
        self._tokens = 0  # written so far
        self._first_done = 0.0  # of the phase: a phase may start again where it was

    async def report_loading(self, held_bytes: int, needed_bytes: int | None) -> None:
        """Report how much memory the loading worker holds, of what the model will need if that is known."""
        done = min(held_bytes, needed_bytes) if needed_bytes else held_bytes
        await self.handle({"op": "progress", "phase": "load", "done": done, "total": needed_bytes, "unit": "bytes"})

    async def handle(self, frame: Frame) -> None:
        """Handle one frame: token, progress, artifact or done."""
        job = self._job
        if frame["op"] == "token":
            if job.task == "text":  # other tasks report their own phases
                self._tokens += frame["count"]
                job.progress = self._progress({"phase": "write", "done": self._tokens, "total": None, "unit": "tokens"})
            await job.emit("token", {name: frame[name] for name in TOKEN if name in frame})
        elif frame["op"] == "progress":
            job.progress = self._progress(frame)
            await job.emit("progress", asdict(job.progress))
        elif frame["op"] == "artifact":
            _check_artifact(frame)
            url = f"/api/jobs/{job.id}/artifacts/{quote(frame['name'])}"
            artifact = Artifact(frame["name"], frame["media_type"], frame["bytes"], url)
            await job.emit("artifact", asdict(artifact))
            await job.flush()  # so that a finished file is known after a crash of the server
        elif frame["op"] == "done":
            job.finish_reason = frame["finish_reason"]
            self._receipt.record_result(frame)

    def _progress(self, frame: Frame) -> Progress:
        """Return the progress, with the remaining time at the rate of this phase."""
        phase, done, total = frame["phase"], frame["done"], frame["total"]
        if self._phase and phase != self._phase:
            self._phase_started_at, self._first_done = time.perf_counter(), done
        self._phase = phase
        spent_s, advanced = time.perf_counter() - self._phase_started_at, done - self._first_done
        eta_s = (
            spent_s / advanced * (total - done) if advanced > 0 and total else 0.0 if done and done == total else None
        )
        return Progress(phase, done, total, frame["unit"], eta_s)


def _check_artifact(frame: Frame) -> None:
    """Check that a file's name stays in the job's folder and its type fits a header. Raises WorkerCrashed."""
    name = frame["name"]
    fits = (
        0 < len(name.encode()) <= NAME_LIMIT and name not in (".", "..") and not re.search(r"[/\\\x00-\x1f\x7f]", name)
    )
    if not fits or MEDIA_TYPE.fullmatch(frame["media_type"]) is None:
        raise WorkerCrashed(
            f"The worker reported a file with an invalid name or type: {clean_name(name)!r}.",
            f"Rerun the job. If it repeats, run `{command('doctor')}` and report its output.",
        )


@contextlib.asynccontextmanager
async def open_output_dir(artifacts: ArtifactStore, job_id: str) -> AsyncIterator[str]:
    """Open an empty folder for a job's files. At the end only the files that the worker completed stay."""
    await asyncio.to_thread(artifacts.begin, job_id)
    try:
        yield str(artifacts.folder(job_id))
    finally:
        await asyncio.to_thread(artifacts.finish, job_id)


def build_run_request(job: JobSink, entry: Entry) -> RunRequest | None:
    """Return the request to the worker, None for a job that only loads. It reads the folder of a song model."""
    request = job.request
    if request.options is None:
        return None
    seed: int | None = request.options.get("seed")
    options, song = fill_defaults(entry.options_for(job.task), request.options), None
    if job.task == "lyrics":
        song, sampling = split_song_options(options)
        options = fill_defaults("text", sampling)  # engines expect all options of a text
    return RunRequest(
        messages=request.messages,
        prompt=request.prompt,
        texts=request.texts,
        inputs=dict(request.inputs),
        options=options,
        song=song,
        seed=secrets.randbelow(SEEDS) if seed is None else seed,
        reuse_cache=seed is None,  # with a seed the caller wants the same text again
        preface=request.understood.summary() if request.understood else "",
        model=entry.id,
    )
