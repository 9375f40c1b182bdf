"""Drives one generation job: device after device by the caller's policy, each in its lane, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from backend.common import errors
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.engines import RunRequest, engines
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.receipt import PLACEMENT_FLOOR, ReceiptBuilder
from backend.jobs.uploads import UploadStore
from backend.jobs.worker_events import JobSink, WorkerEventHandler, build_run_request, open_output_dir
from backend.models import Entry
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.first_available import acquire_first
from backend.scheduling.ranking import by_preference
from backend.scheduling.target_selection import SchedulingContext as SchedulingContext
from backend.scheduling.target_selection import Target, TargetSelector, nothing_behind, refusal_of
from backend.scheduling.worker import Worker
from backend.scheduling.worker_pool import LoadedModel

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Room = Callable[[], contextlib.AbstractAsyncContextManager[str]]

DEATHS_OF_A_JOB = 2  # devices on which its workers may die; then it is the job that kills them


class ExecutorContext(SchedulingContext, Protocol):
    """What a run needs beside a turn: where its files go, and those that its caller sent."""

    artifacts: ArtifactStore
    uploads: UploadStore


class JobExecutor:
    """One job on its way through attempts. A job without options loads the model and generates nothing.

    Of several devices that its caller named it takes the one that is free first, and another if that one fails.
    """

    def __init__(self, around: ExecutorContext, job: JobSink, entry: Entry) -> None:
        """Raises UnknownDevice or Validation where the job's device names nothing (any more)."""
        self._around = around
        self._job = job
        self._entry = entry
        self._request = build_run_request(job, entry)
        self._ways = TargetSelector(around, entry, job.task, job.request, self._request)
        self._words: list[str] = job.request.get("devices") or [job.request["device"]]
        self._ledger = ReceiptBuilder(", ".join(self._words), self._resolved()[0], job.accepted_at)
        self._room: Room = lambda: open_output_dir(around.artifacts, job.id)
        self._name = job.id  # under which a worker runs it
        self._out: list[str] = []  # the devices that could not be used
        self._deaths = 0
        self._handed: tuple[str, TouchstoneError] | None = None  # by whom and why, until it is known to whom

    async def run(self) -> None:
        """Runs the job to its end. Raises the TouchstoneError that ended it, JobCancelled for a cancel."""
        named = await self._settled()
        self._engines = {one.resolved: one.engine or self._job.request["engine"] for one in named}
        targets: list[str | None] = list(self._engines)
        while True:
            try:
                await self._attempt(self._first_of(targets))
                return
            except TouchstoneError as error:
                targets = [target for target in targets if target is not None and target not in self._out]
                if not targets or not self._hands_on(error):
                    targets = [self._by_policy(error)]
                if len(targets) == 1:
                    await self._fall_back(self._out[-1], str(targets[0]), error)
                else:
                    self._handed = self._out[-1], error

    def note_receipt(self) -> None:
        """Puts the receipt as it stands on the job."""
        seed = self._request.seed if self._request else None
        file = self._entry.path_for(self._ledger.engine)
        self._job.receipt = self._ledger.build(time.perf_counter(), seed, file.name)

    def _resolved(self) -> list[Resolution]:
        task, engine, wish = self._entry.task, self._job.request["engine"], self._ways.ranking_query()
        return [self._around.resolve(word, task, engine, wish) for word in self._words]

    async def _settled(self) -> list[Resolution]:
        """What the named devices are; while devices are being probed, waits unless they are ready already."""
        named = self._resolved()
        if self._around.probes.probing and not all(
            one.resolved and self._around.device(one.resolved).state == "ready" for one in named
        ):
            await self._unless_cancelled(self._around.probes.wait_until_idle())
            named = self._resolved()
            self._ledger.resolution = named[0]
        return named

    def _first_of(self, targets: Sequence[str | None]) -> Sequence[str | None]:
        """The devices that may do it now."""
        return targets

    async def _attempt(self, targets: Sequence[str | None]) -> None:
        ways = self._possible(targets)
        waiting_since = time.perf_counter()
        async with self._turn(ways) as way:
            device = way.device
            self._ledger.queued_s += time.perf_counter() - waiting_since
            self._possible([device.id])  # it may have been lost or put aside during the wait
            await self._taken(device, len(targets) > 1)
            self._ledger.begin_attempt(device, way.key.runtime, way.key.engine)
            try:
                async with self._loaded(way) as worker:
                    self._check_placement(worker, device)
                    self.note_receipt()
                    if self._request:
                        await self._generate(worker, device, self._request)
                        self._around.quarantine.record_success(device.id, self._entry.id)
                self._ledger.end_attempt()
            except TouchstoneError as error:
                self._ledger.end_attempt(error.code)
                self._out.append(device.id)
                if error.kills_worker:
                    self._deaths += 1
                    self._around.worker_died(device.id, self._entry.id, error)
                raise

    def _possible(self, targets: Sequence[str | None]) -> list[Target]:
        """The ways to these devices, those that have the model loaded first. Raises the last refusal if there is none.

        What is refused stands in the receipt as an attempt, and is out.
        """
        ways: list[Target] = []
        refusal: TouchstoneError | None = None
        for target in targets:
            name = target or self._ledger.asked.strip().lower()  # /metrics counts it under that name
            try:
                if target is None:
                    raise nothing_behind(self._ledger.asked, self._ledger.resolution.reason)
                ways.append(self._ways.select(target, self._engines.get(target)))
            except TouchstoneError as error:
                if not isinstance(error, errors.UnsupportedParameter):
                    self._ledger.record_refusal(name, error.code)
                self._out.append(name)
                refusal = error
        if refusal and not ways:
            raise refusal
        return sorted(ways, key=lambda way: not self._around.pool.is_loaded(way.key))

    @contextlib.asynccontextmanager
    async def _turn(self, ways: Sequence[Target]) -> AsyncIterator[Target]:
        """Holds the lane of the way that is free first; a cancel gives the place up."""
        wanted = [self._ways.queue_request(way) for way in ways]
        turn = acquire_first(wanted, self._job.caller, self._job.set_queue_position)
        entering = turn.__aenter__()
        free = any(
            one.queue.is_free(one.batch_key, one.max_batch) for one in wanted
        )  # then there is no wait to be cut short
        number = await (entering if free else self._unless_cancelled(entering))
        try:
            yield ways[number]
        finally:
            await turn.__aexit__(None, None, None)

    async def _taken(self, device: Device, chosen: bool) -> None:
        """Says which of several devices has it now."""
        if self._handed:
            source, error = self._handed
            self._handed = None
            await self._fall_back(source, device.id, error)
        elif chosen:
            reason = f"{device.id} was the first that was free of {self._ledger.asked}."
            self._ledger.resolution = Resolution(device.id, reason)

    @contextlib.asynccontextmanager
    async def _loaded(self, way: Target) -> AsyncIterator[Worker]:
        """Has the model loaded, and keeps it from being unloaded meanwhile."""
        held = self._around.pool.try_acquire(way.key) or await self._load(way)
        try:
            yield held.worker
        finally:
            self._around.pool.release(held)

    async def _load(self, way: Target) -> LoadedModel:
        pool, key, lane = self._around.pool, way.key, way.queue.hardware_id
        loading = self._around.loading_lock(lane)  # of jobs that share the turn, one loads
        await self._unless_cancelled(loading.acquire())
        try:
            if not pool.is_loaded(key):
                await self._job.set_status("loading", {"model": key.model, "device": key.device, "engine": key.engine})
            told = WorkerEventHandler(self._job, self._ledger).report_loading
            path = self._entry.path_for(key.engine)
            held, load_s = await self._unless_cancelled(pool.acquire(lane, way.device, key, path, told))
        finally:
            loading.release()
        self._ledger.load_s += load_s
        return held

    def _check_placement(self, worker: Worker, device: Device) -> None:
        if not worker.alive:  # it died since it was chosen
            raise worker.exit_error()
        share = self._ledger.record_placement(worker, device)
        if share is not None and share < PLACEMENT_FLOOR and not (self._request and self._request.only_looks):
            assert worker.loaded
            raise errors.PlacementTooLow(
                f"Only {share:.0%} of {self._entry.id} lies on {device.id} ({worker.loaded.placement.evidence}).",
                "Choose a smaller model or another device.",
            )

    async def _generate(self, worker: Worker, device: Device, request: RunRequest) -> None:
        job = self._job
        request = replace(request, inputs=self._around.uploads.resolve_inputs(request.inputs))
        advance = job.set_status("running", {"device": device.id, "engine": worker.key.engine})
        stored = asyncio.ensure_future(advance)  # while the worker begins
        try:
            engine = engines()[worker.key.engine]
            if engine.makes_files or job.task in engine.file_tasks:
                async with self._room() as folder:
                    await self._follow(worker, replace(request, folder=folder), stored)
            else:
                await self._follow(worker, request, stored)
        except errors.TouchstoneError as error:
            if error.kills_worker and job.cancelling.is_set():  # it was killed since it did not stop by itself
                raise cancelled() from error
            raise
        finally:
            await asyncio.wait({stored})
            if not stored.cancelled():
                stored.exception()  # it is raised where the first frame is taken
        if job.cancelling.is_set():
            raise cancelled()

    async def _follow(self, worker: Worker, request: RunRequest, stored: asyncio.Future[None]) -> None:
        frames, taking = (
            worker.run(self._name, request, self._job.cancelling),
            WorkerEventHandler(self._job, self._ledger),
        )
        async with contextlib.aclosing(frames):
            async for frame in frames:
                await stored  # before anything is shown that a crash would take back
                await taking.handle(frame)

    def _hands_on(self, error: TouchstoneError) -> bool:
        """Whether another device that the caller named takes over; a crash does not end what others can do."""
        return error.falls_back or (error.kills_worker and self._deaths < DEATHS_OF_A_JOB)

    def _by_policy(self, error: TouchstoneError) -> str:
        """The device that the policy falls back to. Raises the error itself, or why that device cannot be used."""
        if not error.falls_back:
            raise error
        policy = self._job.request["fallback"]
        candidates: list[str] = []
        if policy == "any":
            ready = by_preference(self._around.known_devices(), self._job.task, self._ways.ranking_query())
            candidates = [device.id for device in ready if self._entry.id not in device.quarantined_models]
        if policy != "never":
            candidates.append("cpu")
        target = next((candidate for candidate in candidates if candidate not in self._out), None)
        if target is None:
            raise error
        if refusal := refusal_of(self._around.device(target), self._entry.id):
            raise refusal from error
        return target  # by any engine: the one that was asked for was asked for with the first device

    async def _fall_back(self, source: str, target: str, error: TouchstoneError) -> None:
        self._ledger.reason = f"{source} could not be used ({error.code}): {error.detail}"
        log.warning("fallback", extra={"job": self._job.id, "from": source, "to": target, "code": error.code})
        await self._job.emit("fallback", {"from": source, "to": target, "code": error.code, "reason": error.detail})

    async def _unless_cancelled(self, work: Awaitable[Result]) -> Result:
        return await cancel_on(self._job.cancelling, work, cancelled)


async def cancel_on(event: asyncio.Event, work: Awaitable[Result], error: Callable[[], Exception]) -> Result:
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
