"""The composition root: makes all services of the manager, gives each what it uses, starts and stops them.

`model_manager.py` adds the synchronous methods for Python programs; both are one object, ModelManager.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import get_args

from backend.child import handle
from backend.common.config.settings import Settings, load_settings
from backend.common.config.settings.schema import Task
from backend.common.data_dir import DataDir
from backend.common.system.suspend import SuspendDetector
from backend.common.types import Device, Event, Model
from backend.jobs.event_bus import EventBus
from backend.jobs.generate_request import GenerateRequest
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import JobRegistry
from backend.jobs.store.sqlite import JobStore
from backend.jobs.uploads import UploadStore
from backend.manager.background import Housekeeping
from backend.manager.benchmarks.history import Measurements
from backend.manager.benchmarks.idle_trigger import IdleTrigger
from backend.manager.benchmarks.service import BenchmarkService
from backend.manager.benchmarks.speeds import MeasuredSpeeds
from backend.manager.generation import GenerationService, JobContext
from backend.manager.health import HealthReporter
from backend.manager.job_dispatcher import JobDispatcher, JobHandler
from backend.manager.memory_fit import MemoryFitEstimator
from backend.manager.metrics import Gauges, Metrics
from backend.manager.model_advice import ModelAdvisor
from backend.manager.model_jobs import ModelJobs
from backend.manager.runtime_service.description import BASE
from backend.manager.runtime_service.service import RuntimeService
from backend.manager.task_runner import TaskRunner
from backend.models import Catalogue
from backend.runtimes.recipes import recipes
from backend.runtimes.store import RUNTIMES, RuntimeStore
from backend.runtimes.user_environments import user_pythons
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.provider_options import check_provider_options
from backend.scheduling.worker_pool import WorkerPool
from backend.tasks.options import options_schema


class Core:
    """Owns all services. `start` and `stop` belong to one event loop; all other methods run on it."""

    def __init__(
        self, settings: Settings | None = None, spawn: handle.Spawn = handle.spawn, sleep: SuspendDetector | None = None
    ) -> None:
        """Make the services without starting them. Raises Configuration for settings that cannot be used.

        All arguments are optional. Default settings are those of config.yaml and the environment. `spawn` starts child
        processes, `sleep` detects a suspend.
        """
        self.settings = settings = settings or load_settings()
        check_provider_options(settings)
        self._started_at = time.monotonic()
        self._make_stores(settings)
        self._make_scheduling(settings, spawn)
        self._make_services(settings, spawn, sleep or SuspendDetector())
        self._dispatcher.handlers = self._handlers()

    def _make_stores(self, settings: Settings) -> None:
        """Make what is kept in memory and in the data folder."""
        self.data_dir = DataDir(settings.data_dir)
        self.data_dir.check()  # before the first read
        self.catalogue = Catalogue(settings, lambda task: options_schema(task, settings.text.max_tokens))
        self.event_bus = EventBus()
        self.metrics = Metrics()
        self._store = JobStore(settings.data_dir / "jobs.sqlite3")
        self.artifacts = self._store.artifacts
        self.uploads = UploadStore(settings.data_dir / "files", settings.files)
        self.registry = JobRegistry(self._store, self.event_bus, self.metrics.count_job)
        self._history = Measurements(settings.data_dir / "measurements.json")
        self._runtime_store = RuntimeStore(settings.data_dir / RUNTIMES)

    def _make_scheduling(self, settings: Settings, spawn: handle.Spawn) -> None:
        """Make what decides where jobs run. Directory, speeds and pool call each other back."""
        self._tasks = TaskRunner()
        self.pythons = {BASE: sys.executable, **self._runtime_store.pythons(recipes()), **user_pythons(settings)}
        self._speeds = MeasuredSpeeds(self._history, self.catalogue, lambda hardware: self.directory.driver(hardware))
        self.directory = DeviceDirectory(
            settings,
            self.pythons,
            spawn,
            start_task=self._tasks.start,
            measurements=self._history,
            measured_speeds=self._speeds.of,
            is_occupied=lambda device_id: self.pool.occupies(device_id),
            on_change=self._publish_device,
        )
        self.probes = self.directory.probes
        self.pool = WorkerPool(
            settings, self.pythons, spawn, found=self.directory.detected_device, driver=self.directory.driver
        )

    def _make_services(self, settings: Settings, spawn: handle.Spawn, sleep: SuspendDetector) -> None:
        """Make what callers use."""
        directory, pool, registry = self.directory, self.pool, self.registry
        self._dispatcher = JobDispatcher(registry)
        start = self._dispatcher.start
        context = JobContext(settings, self.catalogue, directory, pool, registry, self.uploads, self.artifacts)
        fit = MemoryFitEstimator(settings.text, directory, pool)
        self.memory_fit = fit
        self.model_advisor = ModelAdvisor(self.catalogue, directory, spawn)
        self.generation = GenerationService(context, registry, start)
        self.runtime_service = RuntimeService(
            settings,
            self._runtime_store,
            self.pythons,
            directory,
            pool,
            registry,
            spawn=spawn,
            start=start,
            start_task=self._tasks.start,
            publish=self.event_bus.publish,
        )
        self.model_jobs = ModelJobs(
            settings, self.catalogue, directory, pool, registry, fit, self.runtime_service.lock, spawn, start
        )
        self.benchmarks = BenchmarkService(
            settings,
            self.catalogue,
            directory,
            pool,
            registry,
            self._history,
            self.pythons,
            spawn=spawn,
            start=start,
            on_measured=self._publish_device,
        )
        self.idle_trigger = IdleTrigger(
            settings.measuring, self.catalogue, directory, registry, self.benchmarks, self._speeds
        )
        self.housekeeping = Housekeeping(
            settings, self.data_dir, directory, registry, self.uploads, self._store, self.model_jobs, sleep
        )
        self.health = HealthReporter(
            settings,
            self.data_dir,
            self.catalogue,
            directory,
            pool,
            registry,
            uptime_s=lambda: self.uptime_s,
            disk_free_bytes=lambda: self.housekeeping.disk_free_bytes,
            shares_worker=context.runs_beside_others,
            problem_sources=(self.runtime_service.problems, self.benchmarks.problems),
        )
        self.metrics.register(
            Gauges(
                directory,
                pool,
                registry,
                uptime_s=lambda: self.uptime_s,
                disk_free_bytes=lambda: self.housekeeping.disk_free_bytes,
            )
        )

    def _handlers(self) -> dict[str, JobHandler]:
        """Return the handler of each task. A new kind of job is one more entry."""
        return {
            **dict.fromkeys((*get_args(Task), "load"), self.generation.handle),
            "download": self.model_jobs.handle_download,
            "convert": self.model_jobs.handle_convert,
            "unload": self.model_jobs.handle_unload,
            **dict.fromkeys(("install", "update", "verify"), self.runtime_service.handle),
            "bench": self.benchmarks.handle,
        }

    async def start(self) -> None:
        """Acquire the data folder, open the job history, resume queued jobs and start the proofs.

        Raises Configuration if another server holds the folder, or if it cannot be used.
        """
        self.data_dir.acquire()
        try:
            await asyncio.to_thread(self.runtime_service.sweep)
            self._history.open()
            self.directory.open(self.settings.data_dir / "proofs.json")
            for job in await self.registry.open():
                self._dispatcher.resume(job)
        except BaseException:
            self.data_dir.release()
            raise
        self._tasks.start(self.probes.probe())
        for loop in self.housekeeping.loops():
            self._tasks.start(loop)
        self._tasks.start(self.idle_trigger.watch())

    async def probe_only(self) -> None:
        """Only probe all devices; an alternative to `start`.

        The data folder is neither acquired nor written, and no queued job is resumed.
        """
        self._history.open()
        await self.probes.probe()

    async def stop(self) -> None:
        """Interrupt running jobs, end all child processes and release the data folder. Takes a few seconds at most."""
        await self._tasks.cancel()
        await asyncio.gather(self.registry.close(), self.pool.close("server stopped"))
        self.data_dir.release()

    @property
    def uptime_s(self) -> float:
        """Seconds since the manager was made."""
        return time.monotonic() - self._started_at

    def models(self) -> list[Model]:
        """Return the models with the state of their files and the devices that they fit (`fits`)."""
        return self.memory_fit.list_models(self.catalogue)

    async def read_models(self) -> list[Model]:
        """Return `models`, with the files read in a thread."""
        return await self.memory_fit.read_models(self.catalogue)

    async def submit(self, request: GenerateRequest, caller: str, key: str | None = None) -> LiveJob | str:
        """Accept a generation job. Returns the id of an earlier job if the same Idempotency-Key made one.

        Raises QueueFull, DiskFull, and what `admit` raises.
        """
        return await self.generation.submit(request, caller, key)

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[Event] | None:
        """Return the events of a job; None if its terminal event is at or below `after`. Raises UnknownJob."""
        return await self.registry.follow(job_id, after)

    def _publish_device(self, device: Device) -> None:
        self.event_bus.publish("device", asdict(device))
