"""The executor of one generation job: attempts on one device after another, by the caller's fallback policy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from backend.common import errors
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.engines import RunRequest, engines
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.receipt import ReceiptBuilder, is_too_low
from backend.jobs.uploads import UploadStore
from backend.jobs.worker_events import JobSink, WorkerEventHandler, build_run_request, open_output_dir
from backend.models import Entry
from backend.models.details import licence
from backend.scheduling.device_queue import acquire_first
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.quarantine import Combination, WorkerDeath
from backend.scheduling.ranking import by_preference
from backend.scheduling.target_selection import Plan, SchedulingContext, Target, TargetSelector, unusable_error
from backend.scheduling.worker import KILLED, Worker
from backend.scheduling.worker_pool import LoadedModel
from backend.tasks.options.unusual_options import unusual_options

log = logging.getLogger(__name__)
Result = TypeVar("Result")
OutputDir = contextlib.AbstractAsyncContextManager[str]

WORKER_DEATHS_LIMIT = 2  # devices on which a job may kill a worker; after that the job is to blame


class ExecutorContext(SchedulingContext, Protocol):
    """The members of the manager that an executor uses besides scheduling: artifacts and uploads."""

    artifacts: ArtifactStore
    uploads: UploadStore


class JobExecutor:
    """Runs one job. A job without options only loads the model.

    If the caller named several devices, the first free one runs the job, and another one if it fails.
    """

    def __init__(self, context: ExecutorContext, job: JobSink, entry: Entry) -> None:
        self._context = context
        self._job = job
        self._entry = entry
        request = job.request
        self._names = request.device_names
        self._selector = TargetSelector(
            context,
            entry,
            job.task,
            engine=request.engine,
            options=request.options,
            fingerprint=lambda: request.fingerprint,
        )
        self._run_request: RunRequest | None = None
        self._plan: Plan
        self._receipt = ReceiptBuilder(
            ", ".join(self._names), Resolution(None, "It was not resolved."), job.accepted_at
        )
        self._failed_devices: list[str] = []
        self._worker_deaths = 0
        self._failover: tuple[str, TouchstoneError] | None = None  # from which device and why, until the next is known

    async def run(self, plan: Plan | None = None) -> None:
        """Run the job to its end. `plan` is made here by default.

        Raises the TouchstoneError that ended the job, JobCancelled for a cancel.
        """
        self._run_request = await self._build_run_request()
        self._plan = plan or await self._make_plan()
        self._receipt.resolution = self._describe_resolution(self._plan)
        log.debug(
            "job planned",
            extra={
                "job": self._job.id,
                "devices": list(self._plan.targets),
                "refused": list(self._plan.refusals),
                "reason": self._receipt.resolution.reason,
            },
        )
        devices = self._plan.devices
        while True:
            try:
                await self._attempt(self._choose_devices(devices))
                return
            except TouchstoneError as error:
                devices = [device for device in devices if device not in self._failed_devices]
                if not devices or not self._may_fail_over(error):
                    devices = [self._choose_fallback(error)]
                if len(devices) == 1:
                    await self._fall_back(self._failed_devices[-1], devices[0], error)
                else:
                    self._failover = self._failed_devices[-1], error

    def note_receipt(self) -> None:
        """Set the job's receipt from what is known so far."""
        seed = self._run_request.seed if self._run_request else None
        self._job.receipt = self._receipt.build(time.perf_counter(), seed)

    async def _build_run_request(self) -> RunRequest | None:
        """Return the request to the worker, None for a job that only loads."""
        if self._job.task != "music":
            return build_run_request(self._job, self._entry)
        return await asyncio.to_thread(build_run_request, self._job, self._entry)

    async def _make_plan(self) -> Plan:
        """Return where the job may run. While devices are being probed, wait unless the named ones are ready.

        Raises UnknownDevice, Validation.
        """
        plan = self._selector.make_plan(self._names)
        if self._context.probes.probing and not plan.is_ready:
            log.debug("waiting for probes", extra={"job": self._job.id})
            await self._unless_cancelled(self._context.probes.wait_until_idle())
            plan = self._selector.make_plan(self._names)
        elif plan.unchecked:
            log.debug("waiting for checks of engines", extra={"job": self._job.id})
            await self._unless_cancelled(self._context.probes.wait_until_checked(plan.unchecked))
            plan = self._selector.make_plan(self._names)
        return plan

    def _describe_resolution(self, plan: Plan) -> Resolution:
        """Return the resolution for the receipt."""
        return plan.resolutions[0]

    def _choose_devices(self, devices: Sequence[str]) -> Sequence[str]:
        """Return the devices of the next attempt: all of them, whichever is free first."""
        return devices

    async def _attempt(self, devices: Sequence[str]) -> None:
        """Run the job on the first free one of these devices. Raises the TouchstoneError of the attempt."""
        targets = self._usable_targets(devices)
        waiting_since = time.perf_counter()
        async with self._acquire_device(targets) as target:
            device = target.device
            waited_s = time.perf_counter() - waiting_since
            self._receipt.queued_s += waited_s
            log.debug(
                "device acquired", extra={"job": self._job.id, "device": device.id, "queued_s": round(waited_s, 3)}
            )
            self._refresh(target)  # the device may have been lost or quarantined during the wait
            await self._note_device(device, len(devices) > 1)
            self._receipt.begin_attempt(device, target.key.runtime, target.key.engine)
            worker: Worker | None = None
            try:
                async with self._loaded(target) as worker:
                    self._check_placement(worker, device)
                    if self._run_request is None:
                        self._receipt.record_step()  # loading is all that the job does
                    self.note_receipt()
                    if self._run_request:
                        await self._generate(worker, device, self._run_request)
                        self._check_departure(device)
                        if not self._context.quarantine.is_empty:
                            place = _combination(target)
                            self._context.quarantine.record_success(place, self._job.request.fingerprint)
                self._receipt.end_attempt()
            except TouchstoneError as error:
                self._note_failure(target, error, worker.pid if worker else None)
                raise

    def _note_failure(self, target: Target, error: TouchstoneError, worker: int | None) -> None:
        """Record a failed attempt in the receipt, the log, and for the quarantine.

        `worker` is the process id of the worker that ran the job, None if it failed to load the model.
        """
        device = target.device.id
        self._receipt.end_attempt(error.code)
        self._failed_devices.append(device)
        if isinstance(error, errors.JobCancelled):
            return
        log.info(
            "attempt failed",
            extra={
                "job": self._job.id,
                "device": device,
                "engine": target.key.engine,
                "code": error.code,
                "detail": error.detail,
            },
        )
        self._worker_deaths += error.kills_worker
        if error.kills_worker or isinstance(error, errors.DeviceWrong):  # no later load is likely to be right
            request = self._job.request
            is_innocent = isinstance(error, errors.DeviceWrong) or bool(error.extra.get(KILLED))
            is_suspect = worker is not None and self._run_request is not None and not is_innocent
            self._context.worker_died(
                WorkerDeath(
                    _combination(target),
                    error,
                    worker,
                    request.fingerprint if is_suspect else None,
                    is_suspect and bool(unusual_options(request.options or {})),
                    tuple(self._entry.engines),
                )
            )

    def _usable_targets(self, devices: Sequence[str]) -> list[Target]:
        """Return the targets on these devices, those with the model loaded first.

        Each refusal is recorded as an attempt in the receipt. Raises the last one if no target is left.
        """
        targets: list[Target] = []
        refusal: TouchstoneError | None = None
        for device in devices:
            try:
                targets.append(self._target_on(device))
            except TouchstoneError as error:
                self._note_refusal(device, error)
                refusal = error
        if refusal and not targets:
            raise refusal
        return sorted(targets, key=lambda target: not self._context.pool.is_loaded(target.key))

    def _target_on(self, device: str) -> Target:
        """Return the target that the plan has on a device, or select one. Raises why the device cannot run the job."""
        if planned := self._plan.targets.get(device):
            return self._selector.refresh(planned, self._plan.query)
        if refusal := self._plan.refusals.get(device):
            raise refusal
        return self._selector.select(device, None, self._plan.query)  # a requested engine binds the named devices only

    def _refresh(self, target: Target) -> None:
        """Check that a target is still usable. Raises why not."""
        try:
            self._selector.refresh(target, self._plan.query)
        except TouchstoneError as error:
            self._note_refusal(target.device.id, error)
            raise

    def _note_refusal(self, device: str, error: TouchstoneError) -> None:
        log.debug("device refused", extra={"job": self._job.id, "device": device, "code": error.code})
        if not isinstance(error, errors.UnsupportedParameter):
            self._receipt.record_refusal(device, error.code)
        self._failed_devices.append(device)

    @contextlib.asynccontextmanager
    async def _acquire_device(self, targets: Sequence[Target]) -> AsyncIterator[Target]:
        """Hold the queue of the target that is free first; a cancel leaves the queues."""
        requests = [self._selector.queue_request(target) for target in targets]
        turn = acquire_first(requests, self._job.caller, self._job.set_queue_position)
        entering = turn.__aenter__()
        if any(request.is_free for request in requests):  # no wait, so a cancel need not end one
            index = await entering
        else:
            waiting = {target.queue.hardware_id: len(target.queue) for target in targets}
            log.debug("waiting in the queue", extra={"job": self._job.id, "queues": waiting})
            index = await self._unless_cancelled(entering)
        try:
            yield targets[index]
        finally:
            await turn.__aexit__(None, None, None)

    async def _note_device(self, device: Device, was_chosen: bool) -> None:
        """Record which of several devices runs the job now."""
        if self._failover:
            source, error = self._failover
            self._failover = None
            await self._fall_back(source, device.id, error)
        elif was_chosen:
            reason = f"{device.id} was the first free device of {self._receipt.asked}."
            self._receipt.resolution = Resolution(device.id, reason)

    @contextlib.asynccontextmanager
    async def _loaded(self, target: Target) -> AsyncIterator[Worker]:
        """Load the model if necessary, and keep it loaded."""
        path = self._entry.path_for(target.key.engine)
        loaded = await self._context.pool.try_acquire(target.key, path, self._gpu_layers)
        loaded = loaded or await self._load(target, path)
        try:
            yield loaded.worker
        except errors.DeviceWrong as error:
            self._context.pool.discard(loaded, error.detail)
            raise
        finally:
            self._context.pool.release(loaded)

    @property
    def _gpu_layers(self) -> int | Literal["auto"] | None:
        """The layers on the card that the request names. None: as the model is loaded, or by the settings."""
        return self._job.request.asked_layers

    async def _load(self, target: Target, path: Path) -> LoadedModel:
        pool, key, hardware_id = self._context.pool, target.key, target.queue.hardware_id
        loading = self._context.loading_lock(hardware_id)  # of jobs that share a turn, one loads
        await self._unless_cancelled(loading.acquire())
        try:
            if not pool.is_loaded(key):
                await self._job.set_status("loading", {"model": key.model, "device": key.device, "engine": key.engine})
            report = WorkerEventHandler(self._job, self._receipt).report_loading
            acquiring = pool.acquire(hardware_id, target.device, key, path, report, self._job.id, self._gpu_layers)
            loaded, load_s = await self._unless_cancelled(acquiring)
        finally:
            loading.release()
        target.queue.admit()  # how many jobs share the model is known now
        self._receipt.load_s += load_s
        return loaded

    def _check_placement(self, worker: Worker, device: Device) -> None:
        """Record where the model is placed. Raises PlacementTooLow, or what ended a worker that died meanwhile."""
        if not worker.alive:
            raise worker.exit_error()
        share = self._receipt.record_placement(worker, device)
        assert worker.loaded
        if is_too_low(share, worker.loaded.fit) and not self._is_inspection:
            raise errors.PlacementTooLow(
                f"Only {share:.0%} of {self._entry.id} is on {device.id} ({worker.loaded.placement.evidence}).",
                "Choose a smaller model or another device.",
            )

    def _check_departure(self, device: Device) -> None:
        """Raise DeviceWrong if the model was on the device when the job began, and was not when it ended."""
        departure = self._receipt.describe_departure()
        if departure is None or self._is_inspection:
            return
        raise errors.DeviceWrong(
            f"The model {self._entry.id} left {device.id} during the job: {departure}",
            "The model is loaded again for the next job. If it repeats, update the device's driver, or choose another "
            "device.",
        )

    @property
    def _is_inspection(self) -> bool:
        return bool(self._run_request and self._run_request.is_inspection)

    async def _generate(self, worker: Worker, device: Device, request: RunRequest) -> None:
        job = self._job
        if request.inputs:
            inputs = await asyncio.to_thread(self._context.uploads.resolve_inputs, request.inputs)
            request = replace(request, inputs=inputs)
        advance = job.set_status("running", {"device": device.id, "engine": worker.key.engine})
        stored = asyncio.ensure_future(advance)  # while the worker starts on the job
        try:
            engine = engines()[worker.key.engine]
            if engine.makes_files or job.task in engine.file_tasks:
                async with self._open_output_dir() as folder:
                    await self._forward_frames(worker, await self._with_files(request, folder), stored)
            else:
                await self._forward_frames(worker, request, stored)
        except TouchstoneError as error:
            if error.kills_worker and job.cancelling.is_set():  # it was killed because it ignored the cancel
                raise cancelled() from error
            raise
        finally:
            await asyncio.wait({stored})
            if not stored.cancelled():
                stored.exception()  # it is raised where the first frame is awaited
        if job.cancelling.is_set():
            raise cancelled()

    async def _with_files(self, request: RunRequest, folder: str) -> RunRequest:
        """Return the request of a job that makes files in `folder`. The model's licence becomes part of them."""
        declared = self._entry.licence or await asyncio.to_thread(licence, self._entry.target)
        return replace(request, folder=folder, licence=declared)

    async def _forward_frames(self, worker: Worker, request: RunRequest, stored: asyncio.Future[None]) -> None:
        """Run the request and pass the worker's frames to the job, none before its status is stored."""
        frames = worker.run(self._run_id, request, self._job.cancelling)
        handler = WorkerEventHandler(self._job, self._receipt)
        async with contextlib.aclosing(frames):
            async for frame in frames:
                await stored  # no frame is shown that a crash of the server would take back
                if self._receipt.record_step(frame["op"]):
                    self.note_receipt()
                await handler.handle(frame)

    @property
    def _run_id(self) -> str:
        """The id under which a worker runs the job."""
        return self._job.id

    def _open_output_dir(self) -> OutputDir:
        """Open the folder for the job's files."""
        return open_output_dir(self._context.artifacts, self._job.id)

    def _may_fail_over(self, error: TouchstoneError) -> bool:
        """Return whether another named device takes over. After a crash others may, up to a limit."""
        return error.falls_back or (error.kills_worker and self._worker_deaths < WORKER_DEATHS_LIMIT)

    def _choose_fallback(self, error: TouchstoneError) -> str:
        """Return the device that the policy falls back to, with any engine.

        Raises the error if there is none, or why the fallback device cannot run the job.
        """
        if not error.falls_back:
            raise error
        policy = self._job.request.fallback
        candidates: list[str] = []
        if policy == "any":
            ready = by_preference(self._context.known_devices(), self._job.task, self._plan.query)
            candidates = [device.id for device in ready if self._entry.id not in device.quarantined_models]
        if policy != "never":
            candidates.append("cpu")
        fallback = next((candidate for candidate in candidates if candidate not in self._failed_devices), None)
        if fallback is None:
            raise error
        if refusal := unusable_error(self._context.device(fallback), self._entry.id):
            raise refusal from error
        return fallback

    async def _fall_back(self, source: str, target: str, error: TouchstoneError) -> None:
        """Record a fallback in the receipt, the log and the job's events."""
        self._receipt.reason = f"{source} could not be used ({error.code}): {error.detail}"
        log.warning("fallback", extra={"job": self._job.id, "from": source, "to": target, "code": error.code})
        await self._job.emit("fallback", {"from": source, "to": target, "code": error.code, "reason": error.detail})

    async def _unless_cancelled(self, work: Awaitable[Result]) -> Result:
        return await cancel_on(self._job.cancelling, work, cancelled)


async def cancel_on(event: asyncio.Event, work: Awaitable[Result], error: Callable[[], Exception]) -> Result:
    """Return the result of `work`. If `event` is set first, cancel it, wait for its end and raise `error()`."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise error()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


def _combination(target: Target) -> Combination:
    return Combination(target.key.device, target.key.engine, target.key.model)


def cancelled() -> errors.JobCancelled:
    """Return the error that ends a job which its caller cancelled."""
    return errors.JobCancelled("The job was cancelled.", "Rerun it if you want its result.")
