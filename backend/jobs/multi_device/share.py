"""A share of a job as its run sees it: what it tells becomes the job's own events, without any of them twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from backend.common.types import Artifact, JobStatus, Progress, Receipt
from backend.jobs.executor import ExecutorContext, JobExecutor
from backend.jobs.live_job import LiveJob
from backend.jobs.multi_device.division import ShareSpec
from backend.jobs.multi_device.progress import CombinedProgress
from backend.models import Entry
from backend.scheduling.device_resolution import Resolution

STATES = ("queued", "loading", "running")


class ShareJob:
    """Stands for the job. Its text is told by the first share alone, its states by whoever comes to them first."""

    def __init__(
        self,
        job: LiveJob,
        folder: Path,
        number: int,
        share: ShareSpec,
        others: Sequence[str],
        seed: int,
        joint: CombinedProgress,
    ) -> None:
        """The files of all shares lie in `folder`. `others` may take this one over; `seed` is the job's."""
        self._job = job
        self.folder = folder
        self._number = number
        self._joint = joint
        self.share = share
        options = {**job.request["options"], "seed": seed}
        self.request: dict[str, Any] = {**job.request, "devices": [share.device, *others], "options": options}
        self.id, self.task, self.caller, self.accepted_at = job.id, job.task, job.caller, job.accepted_at
        self.cancelling = asyncio.Event()
        self.progress: Progress | None = None
        self.finish_reason: str | None = None
        self.receipt: Receipt | None = None
        self.made: list[Artifact] = []

    def set_queue_position(self, position: int, expected_s: float | None) -> None:
        """The place in the queue counts until a share has begun."""
        if self._job.status == "queued":
            self._job.set_queue_position(position, expected_s)

    async def set_status(self, status: JobStatus, data: dict[str, Any]) -> None:
        """The job enters a state with the first of its shares."""
        if STATES.index(self._job.status) < STATES.index(status):
            await self._job.set_status(status, data)

    async def emit(self, event: str, data: dict[str, Any]) -> None:
        """What another share has told already is left out; a fallback takes this share's files alone."""
        if event == "fallback":
            await self._begin_anew(data)
        elif event == "progress":
            assert self.progress
            self._job.progress = self._joint.tell(self._number, self.progress)
            await self._job.emit("progress", asdict(self._job.progress))
        elif event == "artifact":
            self.made.append(Artifact(**data))
            await self._job.emit("artifact", data)
        elif event != "token" or self._number == 0:
            await self._job.emit(event, data)

    async def flush(self) -> None:
        """Writes what was told."""
        await self._job.flush()

    def ended(self) -> None:
        """The share is complete."""
        self._joint.end(self._number)
        if self._number == 0:
            self._job.finish_reason = self.finish_reason

    async def _begin_anew(self, data: dict[str, Any]) -> None:
        """After a fallback the text and the files begin anew for who follows, so those of the others are told again."""
        gone = {one.name for one in self.made}
        await asyncio.to_thread(self._remove, gone)
        self.made.clear()
        self._joint.forget(self._number)
        kept = [one for one in self._job.artifacts if one.name not in gone]
        text = self._job.text if self._number else ""
        await self._job.emit("fallback", data)
        if text:
            await self._job.emit("token", {"text": text, "count": 0})
        for one in kept:
            await self._job.emit("artifact", asdict(one))

    def _remove(self, names: set[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


class ShareExecutor(JobExecutor):
    """The run of a share: on its own device, and on the others only after that one failed."""

    def __init__(self, around: ExecutorContext, part: ShareJob, entry: Entry) -> None:
        super().__init__(around, part, entry)
        share = part.share
        assert self._request, "a job that is shared out generates"
        self._request = replace(self._request, share=(share.first, share.count))
        self._room = lambda: contextlib.nullcontext(str(part.folder))
        self._name = f"{part.id}.{share.first}"  # a worker may have two shares at once
        self._ledger.asked = share.device
        self._ledger.resolution = Resolution(share.device, f"Variations {share.words}.")

    def _first_of(self, targets: Sequence[str | None]) -> Sequence[str | None]:
        return targets if self._out else targets[:1]
