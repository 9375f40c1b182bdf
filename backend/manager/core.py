"""The owner's working half: devices and their proofs, models, lanes, workers and jobs, on one event loop.

`manager.py` adds the synchronous methods for Python programs; both halves are one object, ModelManager.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from backend.child import handle
from backend.common import errors
from backend.common.config.settings import Settings, load_settings
from backend.common.data_dir import DataDir
from backend.common.system.suspend import SuspendDetector
from backend.common.types import Device, Event, Hardware, Model
from backend.devices import backends
from backend.jobs.admission import admit
from backend.jobs.event_bus import EventBus
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.multi_device import executor_for
from backend.jobs.registry import JobRegistry
from backend.jobs.request import GenerateRequest, parse_request, served_tasks
from backend.jobs.store.sqlite import JobStore
from backend.jobs.uploads import UploadStore
from backend.manager import background, model_jobs
from backend.manager.benchmarks import TASK as BENCH
from backend.manager.benchmarks import BenchmarkService, idle_trigger
from backend.manager.memory_fit import list_models
from backend.manager.metrics import Metrics
from backend.manager.runtime_service import TASKS, RuntimeService
from backend.manager.runtime_service.description import BASE, own_pythons
from backend.models import Catalogue, Entry
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution, apply_default, in_order, resolve, unreachable
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.proof_cache import ProofCache
from backend.scheduling.provider_options import check_provider_options
from backend.scheduling.quarantine import Quarantine
from backend.scheduling.ranking import ANY, RankingQuery
from backend.scheduling.worker_pool import WorkerPool
from backend.tasks.options import options_schema

log = logging.getLogger(__name__)


class Core:
    """Owns everything. `start` and `stop` belong to one event loop; all other methods run on it."""

    def __init__(
        self, settings: Settings | None = None, spawn: handle.Spawn = handle.spawn, sleep: SuspendDetector | None = None
    ) -> None:
        self.settings = settings or load_settings()
        self.catalogue = Catalogue(self.settings, lambda task: options_schema(task, self.settings.text.max_tokens))
        self.data_dir = DataDir(self.settings.data_dir)
        self.event_bus = EventBus()
        self.metrics = Metrics(self)
        self._store = JobStore(self.settings.data_dir / "jobs.sqlite3")
        self.artifacts = self._store.artifacts
        self.uploads = UploadStore(self.settings.data_dir / "files", self.settings.files)
        self.registry = JobRegistry(self._store, self.event_bus, self.metrics.count_job)
        self._sleep = sleep or SuspendDetector()
        self._check_device()
        check_provider_options(self.settings)
        self.spawn = spawn
        self.runtime_service = RuntimeService(self)
        self.benchmarks = BenchmarkService(self)
        self.pythons = {BASE: sys.executable, **self.runtime_service.pythons(), **own_pythons(self)}
        self._lanes: dict[str, DeviceQueue] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self.quarantine = Quarantine()
        self._background: set[asyncio.Task[None]] = set()
        self._keyed = asyncio.Lock()
        self.disk_free_bytes: int | None = None  # of the data folder's disk, as housekeeping saw it last
        self.accepting = asyncio.Lock()  # between looking for a job and accepting one, another may be accepted
        self._started_at = time.monotonic()

    async def start(self) -> None:
        """Takes the data folder, opens the history, goes on with queued jobs and begins the proofs.

        Raises Configuration when the folder is held or unusable.
        """
        self.data_dir.acquire()
        try:
            await asyncio.to_thread(self.runtime_service.sweep)
            self.benchmarks.history.open()
            self.probes = self._prober(ProofCache(self.settings.data_dir / "proofs.json"))
            self.pool = WorkerPool(
                self.settings, self.pythons, self.spawn, found=self.probes.detected_device, driver=self.probes.driver
            )
            for job in await self.registry.open():
                self._resume(job)
        except BaseException:
            self.data_dir.release()
            raise
        self.in_background(self.probes.probe())
        self.in_background(background.beat(self, self._sleep))
        self.in_background(background.sweep(self, self._store))
        self.in_background(background.sweep_files(self))
        self.in_background(background.preload(self))
        self.in_background(idle_trigger.watch(self, self.benchmarks))

    async def probe_only(self) -> None:
        """Probes all devices and does nothing else: no data folder is taken, no job goes on. Instead of `start`."""
        self.benchmarks.history.open()
        self.probes = self._prober(ProofCache())
        self.pool = WorkerPool(
            self.settings, self.pythons, self.spawn, found=self.probes.detected_device, driver=self.probes.driver
        )
        await self.probes.probe()

    async def stop(self) -> None:
        """Interrupts running jobs, ends all children and gives the folder back; takes a few seconds at most."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(self.registry.close(), self.pool.close())
        self.data_dir.release()

    @property
    def uptime_s(self) -> float:
        """Seconds since the manager was made."""
        return time.monotonic() - self._started_at

    # Devices

    def known_devices(self) -> list[Device]:
        """All devices found so far, as the user's settings allow them."""
        found = sorted(self.probes.devices.values(), key=in_order)
        return [self._allowed(device) for device in found]

    def device(self, id_: str) -> Device:
        """One device; a well-formed id with nothing behind it gives one that is `unavailable`."""
        if found := self.probes.devices.get(id_):
            return self._allowed(found)
        return self._allowed(unreachable(id_, backends()[id_.partition(":")[0]]))

    def hardware(self) -> list[Hardware]:
        """The hardware behind the devices found so far."""
        return list(self.probes.hardware.values())

    def queue(self, hardware_id: str) -> DeviceQueue:
        """The lane of a hardware id."""
        return self._lanes.setdefault(hardware_id, DeviceQueue(hardware_id))

    def queue_ids(self) -> list[str]:
        """The hardware ids of all lanes."""
        return list(self._lanes)

    def loading_lock(self, hardware_id: str) -> asyncio.Lock:
        """The lock under which models are loaded on a hardware."""
        return self._loading.setdefault(hardware_id, asyncio.Lock())

    @property
    def slots(self) -> int:
        """How many jobs may share a loaded model."""
        return self.settings.text.slots

    def worker_died(self, device: str, model: str, error: errors.TouchstoneError) -> None:
        """Counts a worker's death; with the one too many, the device has to prove itself again."""
        if self.quarantine.record_crash(device, model, error):
            log.error("quarantined", extra={"device": device, "model": model, "code": error.code})
            self.refresh(device)

    def release(self, device: str, model: str | None) -> None:
        """Lifts a quarantine and proves the device again. Raises UnknownDevice."""
        if resolved := self.resolve(device).resolved:
            self.quarantine.release(resolved, model)
        self.refresh(device)

    def runs_beside_others(self, model: str) -> bool:
        """Whether a job of the model would run beside others of it."""
        jobs = sum(job.active and job.model == model for job in self.registry.live.values())
        return self.slots > 1 and jobs > 1

    def resolve(
        self, asked: str, task: str = "text", engine: str | None = None, wish: RankingQuery = ANY
    ) -> Resolution:
        """The device for a word, by what was measured with the wish's model. Raises UnknownDevice, Validation."""
        word = apply_default(asked, self.settings.device)
        known = {device.id: device for device in self.known_devices()}
        return resolve(word, known, self.hardware(), task=task, engine=engine, query=wish)

    def refresh(self, asked: str | None = None) -> None:
        """Probes one device or all again. Raises UnknownDevice."""
        self.in_background(self.probes.probe(self.resolve(asked).resolved if asked else None))

    # Models

    def models(self) -> list[Model]:
        """The models on offer, the state of their files, and which devices they fit (`details.fits`)."""
        return list_models(self)

    # Jobs

    async def submit(self, asked: GenerateRequest, caller: str, key: str | None = None) -> LiveJob | str:
        """Accepts a generation job, or gives the id of the one that the same Idempotency-Key made.

        Raises QueueFull, DiskFull, and what `admitted` raises.
        """
        if key is None:
            return await self._accept(asked, caller, {})
        async with self._keyed:
            text = json.dumps(asked.model_dump(exclude={"stream"}), sort_keys=True)
            request_hash = hashlib.sha256(text.encode()).hexdigest()
            if known := await self.registry.find_by_key(key, request_hash):
                return known
            return await self._accept(asked, caller, {"idempotency_key": key, "request_hash": request_hash})

    async def rerun(self, job_id: str, device: str | None, caller: str) -> LiveJob:
        """Accepts the same request again. Raises UnknownJob, and what `submit` raises."""
        view = await self.registry.view(job_id)
        if view["task"] not in served_tasks():
            raise errors.Validation(f"A {view['task']} job cannot be run again.", "Ask for the work itself again.")
        request = {name: value for name, value in view["request"].items() if name in GenerateRequest.model_fields}
        other = {"device": device, "devices": None, "spread": None} if device else {}
        asked = parse_request({**request, **other})
        return await self._accept(asked, caller, {})

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[Event] | None:
        """Events of a job; None when the terminal one is at or below `after`. Raises UnknownJob."""
        return await self.registry.follow(job_id, after)

    async def _accept(self, asked: GenerateRequest, caller: str, key: Mapping[str, Any]) -> LiveJob:
        request, entry = await admit(self, asked)
        queued = self.registry.count("queued")
        if queued >= self.settings.queue.limit:
            raise errors.QueueFull(
                f"{queued} jobs are waiting, which is the limit.",
                "Try again later, or raise queue.limit.",
                retry_after_s=10,
            )
        job = await self.registry.add({**new_row(request.task, request.model, request.to_row(), caller), **key})
        said = {"prompt": request.prompt, "messages": request.messages} if self.settings.log.prompts else {}
        log.info("job accepted", extra={"job": job.id, "task": job.task, "device": request.device, **said})
        self._resume(job, entry)
        return job

    def _resume(self, job: LiveJob, entry: Entry | None = None) -> None:
        if job.task in (*TASKS, BENCH):
            owner = self.benchmarks if job.task == BENCH else self.runtime_service
            self.registry.supervise(job, owner.resume(job))
            return
        try:
            entry = entry or self.catalogue.resolve(job.model or "")
            if work := model_jobs.resumed(self, job, entry):
                self.registry.supervise(job, work)
                return
            run = executor_for(self, job, entry)
        except errors.TouchstoneError as error:  # a stored job whose model or device the configuration no longer has
            self.registry.supervise(job, _fail(error))
            return
        self.registry.supervise(job, run.run(), run.note_receipt)

    def _check_device(self) -> None:
        """What `auto` means must be the name of a device, if only of one that is not here."""
        try:
            resolve(self.settings.device, {}, [], task="text", engine=None)
        except errors.UnknownDevice as error:
            raise errors.Configuration(
                f"`device` is {self.settings.device[:100]!r}, which names no device.",
                "Use auto, an id such as cpu or cuda:0, or an alias such as gpu.",
            ) from error

    def _prober(self, proofs: ProofCache) -> ProbeService:
        limit_s, occupied = self.settings.supervision.probe_s, lambda device: self.pool.occupies(device)
        about = (self.queue, self._tell_device, self._enabled, occupied, proofs)
        return ProbeService(self.pythons, limit_s, self.spawn, *about)

    def _enabled(self, id_: str) -> bool:
        rules = self.settings.devices.get(id_)
        return rules is None or rules.enabled

    def _allowed(self, device: Device) -> Device:
        if speeds := self.benchmarks.speeds(device):
            device = replace(device, speed=speeds)
        if banned := self.quarantine.models(device.id):
            device = replace(device, quarantined_models=banned)
            if device.state == "broken":  # not the model's fault alone: the proof failed as well
                reason = f"Workers kept dying on it, and its check failed: {device.reason}"
                device = replace(device, state="quarantined", reason=reason)
        if self._enabled(device.id):
            return device
        reason, remedy = f"devices.{device.id}.enabled is false in the settings.", "Set it to true in config.yaml."
        return replace(device, state="unavailable", reason=reason, remedy=remedy)

    def in_background(self, work: Any) -> asyncio.Task[None]:
        """Lets it run until it or the manager ends, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _tell_device(self, device: Device) -> None:
        self.event_bus.publish("device", asdict(self._allowed(device)))


async def _fail(error: errors.TouchstoneError) -> None:
    raise error
