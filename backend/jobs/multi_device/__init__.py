"""A job on several devices: its variations are shared out, in parallel or one share after another, as the caller says.

A device that fails hands its share on to the others that were named, so it costs time and not the job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from backend.common.errors import TouchstoneError
from backend.common.seeds import random_seed
from backend.common.timestamps import utc_now
from backend.common.types import Attempt
from backend.jobs.executor import ExecutorContext, JobExecutor, cancel_on, cancelled
from backend.jobs.live_job import LiveJob
from backend.jobs.multi_device.division import ShareSpec, divide
from backend.jobs.multi_device.progress import CombinedProgress
from backend.jobs.multi_device.receipt import combined_receipt
from backend.jobs.multi_device.share import ShareExecutor, ShareJob
from backend.jobs.worker_events import build_run_request, open_output_dir
from backend.models import Entry
from backend.scheduling.target_selection import Target, TargetSelector, nothing_behind


def executor_for(around: ExecutorContext, job: LiveJob, entry: Entry) -> JobExecutor | MultiDeviceJob:
    """What runs a generation job. Raises UnknownDevice or Validation where its devices name nothing (any more)."""
    shared = job.request.get("spread") in ("parallel", "sequential") and job.request["options"]["variations"] > 1
    return MultiDeviceJob(around, job, entry) if shared else JobExecutor(around, job, entry)


class MultiDeviceJob:
    """One job whose variations are made by several workers."""

    def __init__(self, around: ExecutorContext, job: LiveJob, entry: Entry) -> None:
        """Raises UnknownDevice or Validation where a device of the job names nothing (any more)."""
        self._around = around
        self._job = job
        self._entry = entry
        self._ways = TargetSelector(around, entry, job.task, job.request, build_run_request(job, entry))
        self._alone: JobExecutor = JobExecutor(
            around, job, entry
        )  # if no device can have a share: it refuses, or falls back
        self._refused: list[Attempt] = []
        self._left_out = ""  # which devices got no share, and why
        self._runs: list[tuple[ShareJob, ShareExecutor]] = []
        self._reason = ""
        self._began: float | None = None

    async def run(self) -> None:
        """Runs all shares to their end. Raises the TouchstoneError that ended the job, JobCancelled for a cancel."""
        probes = self._around.probes
        if probes.probing:
            await cancel_on(self._job.cancelling, probes.wait_until_idle(), cancelled)
        ways, refusals = self._possible()
        if not ways:
            await self._alone.run()
            return
        for device, error in refusals:
            self._refused.append(Attempt(device, None, None, utc_now(), utc_now(), error.code))
            self._left_out += f"{device} could not be used ({error.code}): {error.detail} "
            said = {"from": device, "to": ways[0].device.id, "code": error.code, "reason": error.detail}
            await self._job.emit("fallback", said)
        async with open_output_dir(self._around.artifacts, self._job.id) as folder:
            self._share_out(ways, folder)
            self._began = time.perf_counter()
            if self._job.request["spread"] == "sequential":
                for part, run in self._runs:
                    await self._together([(part, run)])
            else:
                await self._together(self._runs)
        self._job.artifacts[:] = [one for part, _ in self._runs for one in part.made]  # not as they happened to come

    def note_receipt(self) -> None:
        """Puts the receipt as it stands on the job."""
        if not self._runs:
            self._alone.note_receipt()
            return
        for _, run in self._runs:
            run.note_receipt()
        done = [(part.share, part.receipt) for part, _ in self._runs if part.receipt]
        run_s = time.perf_counter() - self._began if self._began else None
        if done:
            words = ", ".join(self._job.request["devices"])
            receipt = combined_receipt(words, self._reason, run_s, self._refused, done)
            reason = f"{self._left_out}{receipt.reason or ''}".strip() or None
            self._job.receipt = replace(receipt, reason=reason)

    def _possible(self) -> tuple[list[Target], list[tuple[str, TouchstoneError]]]:
        """The ways to the devices that can have a share, and why the others cannot."""
        ways: dict[str, Target] = {}
        refusals: list[tuple[str, TouchstoneError]] = []
        for word in self._job.request["devices"]:
            asked: str | None = self._job.request["engine"]
            found = self._around.resolve(word, self._entry.task, asked, self._ways.ranking_query())
            try:
                if found.resolved is None:
                    raise nothing_behind(word, found.reason)
                if found.resolved not in ways:
                    ways[found.resolved] = self._ways.select(found.resolved, found.engine or asked)
            except TouchstoneError as error:
                refusals.append((found.resolved or word, error))
        return list(ways.values()), refusals

    def _share_out(self, ways: list[Target], folder: str) -> None:
        job, ids = self._job, [way.device.id for way in ways]
        speeds = [_speed(way, self._entry.id) for way in ways]
        shares = divide(job.request["options"]["variations"], ids, speeds)
        joint = CombinedProgress([share.count for share in shares])
        chosen: int | None = job.request["options"]["seed"]
        seed = random_seed() if chosen is None else chosen
        for number, share in enumerate(shares):
            others = [id_ for id_ in ids if id_ != share.device]
            part = ShareJob(job, Path(folder), number, share, others, seed, joint)
            self._runs.append((part, ShareExecutor(self._around, part, self._entry)))
        self._reason = _shared_out(shares, job.request["spread"], all(speeds))

    async def _together(self, runs: Sequence[tuple[ShareJob, ShareExecutor]]) -> None:
        """Runs some shares at once. The first that fails stops the others, and so does a cancel."""
        job = self._job
        watching = asyncio.ensure_future(job.cancelling.wait())
        working = [asyncio.ensure_future(_to_its_end(part, run)) for part, run in runs]
        try:
            left = set(working)
            while left and not job.cancelling.is_set() and not _failures(working):
                done, _ = await asyncio.wait({*left, watching}, return_when=asyncio.FIRST_COMPLETED)
                left -= done
            for part, _ in runs:
                part.cancelling.set()
            first = _failures(working)
            await asyncio.gather(*working, return_exceptions=True)
        finally:
            for task in (*working, watching):
                task.cancel()
            await asyncio.gather(*working, watching, return_exceptions=True)
        if job.cancelling.is_set() and _failures(working):
            raise cancelled()
        for error in first:
            raise error


async def _to_its_end(part: ShareJob, run: ShareExecutor) -> None:
    await run.run()
    part.ended()


def _failures(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException]:
    """What those of them raised that have ended."""
    return [error for task in tasks if task.done() and not task.cancelled() and (error := task.exception())]


def _speed(way: Target, model: str) -> float | None:
    """How fast the way was measured to be with the model."""
    known = (one for one in way.device.speed if (one.model, one.engine) == (model, way.key.engine))
    return next((one.value for one in known), None)


def _shared_out(shares: Sequence[ShareSpec], spread: str, by_speed: bool) -> str:
    """In a sentence, who has which variations, and why."""
    how = "at the same time" if spread == "parallel" else "one share after another"
    why = "by their measured speeds" if by_speed else "in equal shares, since not all of them were measured with it"
    listed = ", ".join(share.words for share in shares)
    return f"The variations are made {how}, shared out {why}: {listed}."
