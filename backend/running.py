"""Drives one generation job: device after device by the caller's policy, each in its lane, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from backend import errors
from backend.artifacts import Artifacts
from backend.catalogue import Entry
from backend.engines import RunRequest, engines
from backend.errors import TouchstoneError
from backend.inbox import Inbox
from backend.jobs import LiveJob
from backend.lanes import Lane
from backend.options import check_honoured, honouring
from backend.pool import Pool
from backend.probes import Probes
from backend.quarantine import DEATHS, Quarantine
from backend.ranking import Wish, by_preference, engines_by_speed
from backend.receipts import PLACEMENT_FLOOR, Ledger
from backend.resolving import Resolution
from backend.runtimes.recipes import bringing
from backend.taking import Frames, request_of, room_for_files
from backend.types import Device
from backend.workers import Worker, WorkerKey

log = logging.getLogger(__name__)
Result = TypeVar("Result")

FALLS_BACK = (
    errors.DeviceNotReady,
    errors.Quarantined,
    errors.ModelIncompatible,
    errors.ModelLoadFailed,
    errors.OutOfMemory,
    errors.DeviceLost,
    errors.PlacementTooLow,
)


class Surroundings(Protocol):
    """What a run needs of the manager."""

    artifacts: Artifacts
    inbox: Inbox
    pool: Pool
    probes: Probes
    quarantine: Quarantine

    @property
    def slots(self) -> int: ...
    def worker_died(self, device: str, model: str, error: TouchstoneError) -> None: ...
    def loading(self, lane: str) -> asyncio.Lock: ...
    def device(self, id_: str) -> Device: ...
    def known_devices(self) -> list[Device]: ...
    def lane(self, hardware_id: str) -> Lane: ...
    def resolve(self, asked: str, task: str, engine: str | None, wish: Wish) -> Resolution: ...
    def several(self, model: str) -> bool: ...


class Run:
    """One job on its way through attempts. A job without options loads the model and generates nothing."""

    def __init__(self, around: Surroundings, job: LiveJob, entry: Entry) -> None:
        """Raises UnknownDevice or Validation where the job's device names nothing (any more)."""
        self._around = around
        self._job = job
        self._entry = entry
        self._request = request_of(job, entry)
        self._ledger = Ledger(job.request["device"], self._resolved(), job.accepted_at)

    async def drive(self) -> None:
        """Runs the job to its end. Raises the TouchstoneError that ended it, JobCancelled for a cancel."""
        await self._settled()
        self._engine = self._ledger.resolution.engine or self._job.request["engine"]
        target: str | None = self._ledger.resolution.resolved
        tried: list[str] = []
        while True:
            try:
                await self._attempt(target)
                return
            except FALLS_BACK as error:
                tried.append(target or self._ledger.asked)
                fallback = self._next_target(tried)
                if fallback is None:
                    raise
                if refusal := refusal_of(self._around.device(fallback), self._entry.id):
                    raise refusal from error
                await self._fall_back(tried[-1], fallback, error)
                target = fallback

    def note_receipt(self) -> None:
        """Puts the receipt as it stands on the job."""
        seed = self._request.seed if self._request else None
        file = self._entry.path_for(self._ledger.engine)
        self._job.receipt = self._ledger.receipt(time.perf_counter(), seed, file.name)

    def _resolved(self) -> Resolution:
        request = self._job.request
        return self._around.resolve(request["device"], self._entry.task, request["engine"], self._wish())

    def _wish(self) -> Wish:
        """What the measurements are asked for: this model by the engines that this job may take."""
        asked, options = self._job.request["engine"], self._job.request.get("options")
        names = [asked] if asked else self._entry.engines
        fitting = honouring(self._job.task, options, names) if options else names
        return Wish(self._entry.id, tuple(fitting), self._around.several(self._entry.id))

    async def _settled(self) -> None:
        """While devices are being probed, waits for the proofs unless the wanted one is ready already."""
        target = self._ledger.resolution.resolved
        if self._around.probes.probing and (target is None or self._around.device(target).state != "ready"):
            await self._unless_cancelled(self._around.probes.settled())
            self._ledger.resolution = self._resolved()

    async def _attempt(self, target: str | None) -> None:
        device = await self._usable(target)
        engine = self._engine_for(device)
        runtime = next(name for name, offered in device.served_by.items() if engine in offered)
        key = WorkerKey(device.id, runtime, engine, self._entry.id)
        lane = self._around.lane(device.hardware_id or device.id)
        waiting_since = time.perf_counter()
        async with self._turn(lane, key):
            self._ledger.queued_s += time.perf_counter() - waiting_since
            await self._usable(target)  # it may have been lost or put aside during the wait
            self._ledger.begin(device, runtime, engine)
            try:
                async with self._loaded(lane.hardware_id, device, key) as worker:
                    self._check_placement(worker, device)
                    self.note_receipt()
                    if self._request:
                        await self._generate(worker, device, self._request)
                        self._around.quarantine.lived(device.id, self._entry.id)
                self._ledger.finish()
            except TouchstoneError as error:
                self._ledger.finish(error.code)
                if isinstance(error, errors.WorkerCrashed | errors.WorkerHung):
                    self._around.worker_died(device.id, self._entry.id, error)
                raise

    async def _usable(self, target: str | None) -> Device:
        if target is None:
            asked = self._ledger.asked
            self._ledger.refuse(asked.strip().lower(), "device_not_ready")  # /metrics counts it under that name
            raise nothing_behind(asked, self._ledger.resolution.reason)
        device = self._around.device(target)
        if refusal := refusal_of(device, self._entry.id):
            self._ledger.refuse(target, refusal.code)
            raise refusal
        return device

    def _engine_for(self, device: Device) -> str:
        wanted = [self._engine] if self._engine else self._entry.engines
        usable = [name for name in self._entry.engines if name in device.engines and name in wanted]
        if self._request:
            check_honoured(self._job.task, self._request.options, usable)
            usable = honouring(self._job.task, self._request.options, usable)
        if usable:
            wish = replace(self._wish(), engines=tuple(usable))
            return self._around.pool.joined(device.id, self._entry.id, usable) or engines_by_speed(device, wish)[0]
        named = f" with the engine {self._engine}" if self._engine else ""
        self._ledger.refuse(device.id, "model_incompatible")
        raise errors.ModelIncompatible(
            f"The model {self._entry.id} cannot run on {device.id}{named}: it runs with "
            f"{', '.join(self._entry.engines) or 'no engine of this version'}, and the device offers "
            f"{', '.join(device.engines) or 'none'}.",
            bringing([self._engine] if self._engine else self._entry.engines, device.backend),
        )

    @contextlib.asynccontextmanager
    async def _turn(self, lane: Lane, key: WorkerKey) -> AsyncIterator[None]:
        """Holds the lane, with other jobs of the same model where the engine can; a cancel gives the place up."""
        share = key if engines()[key.engine].batches else None
        turn = lane.turn(self._job.caller, self._job.moved, share, self._around.slots)
        await self._unless_cancelled(turn.__aenter__())
        try:
            yield
        finally:
            await turn.__aexit__(None, None, None)

    @contextlib.asynccontextmanager
    async def _loaded(self, lane: str, device: Device, key: WorkerKey) -> AsyncIterator[Worker]:
        """Has the model loaded, and keeps it from being unloaded meanwhile."""
        pool = self._around.pool
        loading = self._around.loading(lane)  # of jobs that share the turn, one loads
        await self._unless_cancelled(loading.acquire())
        try:
            if not pool.loaded(key):
                await self._job.advance("loading", {"model": key.model, "device": key.device, "engine": key.engine})
            told = Frames(self._job, self._ledger).loading
            path = self._entry.path_for(key.engine)
            held, load_s = await self._unless_cancelled(pool.use(lane, device, key, path, told))
        finally:
            loading.release()
        self._ledger.load_s += load_s
        try:
            yield held.worker
        finally:
            pool.released(held)

    def _check_placement(self, worker: Worker, device: Device) -> None:
        if not worker.alive:  # it died since it was chosen
            raise worker.ended()
        share = self._ledger.place(worker, device)
        if share is not None and share < PLACEMENT_FLOOR and not (self._request and self._request.only_looks):
            assert worker.loaded
            raise errors.PlacementTooLow(
                f"Only {share:.0%} of {self._entry.id} lies on {device.id} ({worker.loaded.placement.evidence}).",
                "Choose a smaller model or another device.",
            )

    async def _generate(self, worker: Worker, device: Device, request: RunRequest) -> None:
        job = self._job
        request = replace(request, inputs=self._around.inbox.filled(request.inputs))
        await job.advance("running", {"device": device.id, "engine": worker.key.engine})
        try:
            engine = engines()[worker.key.engine]
            if engine.makes_files or job.task in engine.file_tasks:
                async with room_for_files(self._around.artifacts, job.id) as folder:
                    await self._follow(worker, replace(request, folder=folder))
            else:
                await self._follow(worker, request)
        except (errors.WorkerCrashed, errors.WorkerHung) as error:
            if job.cancelling.is_set():  # it was killed since it did not stop by itself
                raise cancelled() from error
            raise
        if job.cancelling.is_set():
            raise cancelled()

    async def _follow(self, worker: Worker, request: RunRequest) -> None:
        frames, taking = worker.run(self._job.id, request, self._job.cancelling), Frames(self._job, self._ledger)
        async with contextlib.aclosing(frames):
            async for frame in frames:
                await taking.take(frame)

    def _next_target(self, tried: list[str]) -> str | None:
        policy = self._job.request["fallback"]
        candidates: list[str] = []
        if policy == "any":
            ready = by_preference(self._around.known_devices(), self._job.task, self._wish())
            candidates = [device.id for device in ready if self._entry.id not in device.quarantined_models]
        if policy != "never":
            candidates.append("cpu")
        return next((candidate for candidate in candidates if candidate not in tried), None)

    async def _fall_back(self, source: str, target: str, error: TouchstoneError) -> None:
        self._ledger.reason = f"{source} could not be used ({error.code}): {error.detail}"
        log.warning("fallback", extra={"job": self._job.id, "from": source, "to": target, "code": error.code})
        self._engine = None  # the engine was asked for with the first device
        await self._job.emit("fallback", {"from": source, "to": target, "code": error.code, "reason": error.detail})

    async def _unless_cancelled(self, work: Awaitable[Result]) -> Result:
        return await unless(self._job.cancelling, work, cancelled)


def nothing_behind(asked: str, reason: str) -> errors.DeviceNotReady:
    """The refusal for an alias with no ready device behind it."""
    said = f"No device stands behind {asked!r}: {reason}"
    return errors.DeviceNotReady(said, "Choose one of the ready devices in /api/devices.")


def refusal_of(device: Device, model: str) -> TouchstoneError | None:
    """Why a model may not run on a device now, or None."""
    if model in device.quarantined_models:
        return errors.Quarantined(
            f"{model} on {device.id} is quarantined: its worker died {DEATHS} times without finishing a job.",
            f"Use another device or model, or try again with POST /api/devices/{device.id}/release.",
        )
    if device.state == "ready":
        return None
    kind = errors.Quarantined if device.state == "quarantined" else errors.DeviceNotReady
    return kind(f"The device {device.id} is {device.state}: {device.reason}", device.remedy or "Choose another device.")


async def unless(event: asyncio.Event, work: Awaitable[Result], error: Callable[[], Exception]) -> Result:
    """Awaits `work`; if `event` is set first, cancels it, waits for its end and raises `error()`."""
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


def cancelled() -> errors.JobCancelled:
    """The ending that a caller asked for."""
    return errors.JobCancelled("The job was cancelled.", "Run it again if you want its result.")
