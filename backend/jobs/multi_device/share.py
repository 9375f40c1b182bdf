"""One share of a job on several devices. Its events become the job's own events, each of them once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from backend.common.types import Artifact, JobStatus, Progress, Receipt
from backend.engines import RunRequest
from backend.jobs.executor import ExecutorContext, JobExecutor, OutputDir
from backend.jobs.live_job import EventData, LiveJob
from backend.jobs.multi_device.division import ShareSpec
from backend.jobs.multi_device.progress import CombinedProgress
from backend.models import Entry
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.target_selection import Plan

STATES = ("queued", "loading", "running")


class ShareJob:
    """The JobSink of one share. The first share's text is the job's; the job's status follows the fastest share."""

    def __init__(
        self,
        job: LiveJob,
        folder: Path,
        number: int,
        share: ShareSpec,
        others: Sequence[str],
        seed: int,
        combined: CombinedProgress,
    ) -> None:
        """`folder` holds the files of all shares. `others` are devices that may take over; `seed` is the job's."""
        self._job = job
        self.folder = folder
        self._number = number
        self._combined = combined
        self.share = share
        options = {**(job.request.options or {}), "seed": seed}
        self.request = replace(job.request, devices=(share.device, *others), options=options)
        self.id, self.task, self.caller, self.accepted_at = job.id, job.task, job.caller, job.accepted_at
        self.cancelling = asyncio.Event()
        self.progress: Progress | None = None
        self.finish_reason: str | None = None
        self.receipt: Receipt | None = None
        self.artifacts: list[Artifact] = []

    def set_queue_position(self, position: int, expected_s: float | None) -> None:
        """Set the job's position while no share has started."""
        if self._job.status == "queued":
            self._job.set_queue_position(position, expected_s)

    async def set_status(self, status: JobStatus, data: EventData) -> None:
        """Set the job's status when the first share reaches it."""
        if STATES.index(self._job.status) < STATES.index(status):
            await self._job.set_status(status, data)

    async def emit(self, event: str, data: EventData) -> None:
        """Emit an event of the job. Text comes from the first share only; a fallback drops the files of this share."""
        if event == "fallback":
            await self._restart(data)
        elif event == "progress":
            assert self.progress
            self._job.progress = self._combined.update(self._number, self.progress)
            await self._job.emit("progress", asdict(self._job.progress))
        elif event == "artifact":
            self.artifacts.append(Artifact(**data))
            await self._job.emit("artifact", data)
        elif event != "token" or self._number == 0:
            await self._job.emit(event, data)

    async def flush(self) -> None:
        """Write the job's events."""
        await self._job.flush()

    def complete(self) -> None:
        """Note that the share is complete."""
        self._combined.complete(self._number)
        if self._number == 0:
            self._job.finish_reason = self.finish_reason

    async def _restart(self, data: EventData) -> None:
        """Emit the fallback. For followers it clears text and files, so emit those of the other shares again."""
        dropped = {artifact.name for artifact in self.artifacts}
        await asyncio.to_thread(self._remove, dropped)
        self.artifacts.clear()
        self._combined.reset(self._number)
        kept = [artifact for artifact in self._job.artifacts if artifact.name not in dropped]
        text = self._job.text if self._number else ""
        await self._job.emit("fallback", data)
        if text:
            await self._job.emit("token", {"text": text, "count": 0})
        for artifact in kept:
            await self._job.emit("artifact", asdict(artifact))

    def _remove(self, names: set[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


class ShareExecutor(JobExecutor):
    """Runs a share on its own device, and on the others only after that one failed."""

    def __init__(self, context: ExecutorContext, share_job: ShareJob, entry: Entry) -> None:
        super().__init__(context, share_job, entry)
        self._share_job = share_job
        self._share = share_job.share
        self._receipt.asked = self._share.device

    async def _build_run_request(self) -> RunRequest | None:
        request = await super()._build_run_request()
        assert request, "a job that is divided generates"
        return replace(request, share=(self._share.first, self._share.count))

    def _describe_resolution(self, plan: Plan) -> Resolution:
        return Resolution(self._share.device, f"Variations {self._share.label}.")

    def _choose_devices(self, devices: Sequence[str]) -> Sequence[str]:
        return devices if self._failed_devices else devices[:1]

    @property
    def _run_id(self) -> str:
        return f"{self._job.id}.{self._share.first}"  # a worker may run two shares of the job at once

    def _open_output_dir(self) -> OutputDir:
        return contextlib.nullcontext(str(self._share_job.folder))
