"""A job on several devices: its variations are divided, and the shares run in parallel or one after another.

If a device fails, the other named devices take over its share, so the failure costs time and not the job.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from backend.common.seeds import SEEDS
from backend.common.timestamps import utc_now
from backend.common.types import Attempt
from backend.jobs.executor import ExecutorContext, JobExecutor, cancel_on, cancelled
from backend.jobs.live_job import LiveJob
from backend.jobs.multi_device.division import ShareSpec, divide
from backend.jobs.multi_device.progress import CombinedProgress
from backend.jobs.multi_device.receipt import combined_receipt
from backend.jobs.multi_device.share import ShareExecutor, ShareJob
from backend.jobs.worker_events import open_output_dir
from backend.models import Entry
from backend.scheduling.target_selection import Plan, Target, TargetSelector

log = logging.getLogger(__name__)


class MultiDeviceJob:
    """Runs one job whose variations are made by several workers."""

    def __init__(self, context: ExecutorContext, job: LiveJob, entry: Entry) -> None:
        self._context = context
        self._job = job
        self._entry = entry
        request = job.request
        self._selector = TargetSelector(context, entry, job.task, engine=request.engine, options=request.options)
        self._single_executor = JobExecutor(context, job, entry)  # if no device can take a share: fails, or falls back
        self._refused_attempts: list[Attempt] = []
        self._refusal_details = ""  # which devices got no share, and why
        self._shares: list[tuple[ShareJob, ShareExecutor]] = []
        self._division_reason = ""
        self._started_at: float | None = None

    async def run(self) -> None:
        """Run all shares to their end.

        Raises the TouchstoneError that ended the job, JobCancelled for a cancel, UnknownDevice or Validation where a
        device of a stored job is no longer known.
        """
        probes = self._context.probes
        if probes.probing:
            log.debug("waiting for probes", extra={"job": self._job.id})
            await cancel_on(self._job.cancelling, probes.wait_until_idle(), cancelled)
        plan = self._selector.make_plan(self._job.request.device_names)
        targets = list(plan.targets.values())
        if not targets:
            await self._single_executor.run(plan)
            return
        for device, error in plan.refusals.items():
            self._refused_attempts.append(Attempt(device, None, None, utc_now(), utc_now(), error.code))
            self._refusal_details += f"{device} could not be used ({error.code}): {error.detail} "
            data = {"from": device, "to": targets[0].device.id, "code": error.code, "reason": error.detail}
            log.warning("fallback", extra={"job": self._job.id, **data})
            await self._job.emit("fallback", data)
        async with open_output_dir(self._context.artifacts, self._job.id) as folder:
            self._divide(targets, folder)
            self._started_at = time.perf_counter()
            if self._job.request.spread == "sequential":
                for share in self._shares:
                    await self._run_shares([share], plan)
            else:
                await self._run_shares(self._shares, plan)
        self._job.artifacts[:] = [artifact for share_job, _ in self._shares for artifact in share_job.artifacts]

    def note_receipt(self) -> None:
        """Set the job's receipt from what is known so far."""
        if not self._shares:
            self._single_executor.note_receipt()
            return
        for _, executor in self._shares:
            executor.note_receipt()
        receipts = [(share_job.share, share_job.receipt) for share_job, _ in self._shares if share_job.receipt]
        run_s = time.perf_counter() - self._started_at if self._started_at else None
        if receipts:
            asked = ", ".join(self._job.request.device_names)
            receipt = combined_receipt(asked, self._division_reason, run_s, self._refused_attempts, receipts)
            reason = f"{self._refusal_details}{receipt.reason or ''}".strip() or None
            self._job.receipt = replace(receipt, reason=reason)

    def _divide(self, targets: Sequence[Target], folder: str) -> None:
        """Divide the variations among the targets; all shares write into `folder`."""
        job, devices = self._job, [target.device.id for target in targets]
        speeds = [_measured_speed(target, self._entry.id) for target in targets]
        shares = divide(job.request.variations, devices, speeds)
        combined = CombinedProgress([share.count for share in shares])
        chosen_seed: int | None = (job.request.options or {}).get("seed")
        seed = secrets.randbelow(SEEDS) if chosen_seed is None else chosen_seed
        for number, share in enumerate(shares):
            others = [device for device in devices if device != share.device]
            share_job = ShareJob(job, Path(folder), number, share, others, seed, combined)
            self._shares.append((share_job, ShareExecutor(self._context, share_job, self._entry)))
        self._division_reason = _explain_division(shares, job.request.spread == "parallel", all(speeds))
        log.debug("job divided", extra={"job": job.id, "shares": [share.label for share in shares]})

    async def _run_shares(self, shares: Sequence[tuple[ShareJob, ShareExecutor]], plan: Plan) -> None:
        """Run some shares at once. The first that fails stops the others, and so does a cancel of the job."""
        job = self._job
        watching = asyncio.ensure_future(job.cancelling.wait())
        running = [asyncio.ensure_future(_run_share(share_job, executor, plan)) for share_job, executor in shares]
        try:
            left = set(running)
            while left and not job.cancelling.is_set() and not _failures(running):
                done, _ = await asyncio.wait({*left, watching}, return_when=asyncio.FIRST_COMPLETED)
                left -= done
            for share_job, _ in shares:
                share_job.cancelling.set()
            first_failures = _failures(running)
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            for task in (*running, watching):
                task.cancel()
            await asyncio.gather(*running, watching, return_exceptions=True)
        if job.cancelling.is_set() and _failures(running):
            raise cancelled()
        for error in first_failures:
            raise error


async def _run_share(share_job: ShareJob, executor: ShareExecutor, plan: Plan) -> None:
    await executor.run(plan.restrict(share_job.request.device_names))
    share_job.complete()


def _failures(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException]:
    """Return the exceptions of the tasks that have failed."""
    return [error for task in tasks if task.done() and not task.cancelled() and (error := task.exception())]


def _measured_speed(target: Target, model: str) -> float | None:
    """Return the measured speed of a target with the model, None without a measurement."""
    speeds = (speed for speed in target.device.speed if (speed.model, speed.engine) == (model, target.key.engine))
    return next((speed.value for speed in speeds), None)


def _explain_division(shares: Sequence[ShareSpec], is_parallel: bool, by_speed: bool) -> str:
    """Return a sentence on which device makes which variations, and why."""
    how = "at the same time" if is_parallel else "one share after another"
    why = "by measured speeds" if by_speed else "in equal shares, since not all devices were measured with the model"
    listed = ", ".join(share.label for share in shares)
    return f"The variations are made {how}, divided {why}: {listed}."
