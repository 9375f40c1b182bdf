"""The service that runs benchmark jobs, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backend.child.handle import Spawn
from backend.common.config.settings import Settings
from backend.common.errors import DeviceNotReady, TouchstoneError, Validation
from backend.common.types import Device
from backend.jobs.admission import check_engine
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.registry import JobRegistry
from backend.manager.benchmarks import report, table
from backend.manager.benchmarks.candidates import TASKS, find_candidates, nothing_to_measure
from backend.manager.benchmarks.history import Measurements
from backend.manager.benchmarks.regressions import regressions
from backend.manager.benchmarks.request import BenchmarkRequest
from backend.manager.benchmarks.runner import BenchmarkRunner, make_scratch_dir
from backend.manager.job_dispatcher import JobWork, StartJob
from backend.manager.job_progress import hold_lock, report_progress
from backend.models import Catalogue, Entry
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.worker_pool import WorkerPool

log = logging.getLogger(__name__)
TASK = "bench"


class BenchmarkService:
    """Accepts benchmark jobs, runs them, and keeps their measurements in `history`."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        history: Measurements,
        pythons: Mapping[str, str],
        *,
        spawn: Spawn,
        start: StartJob,
        on_measured: Callable[[Device], None],
    ) -> None:
        """`pool` is the service's own: its idle models are unloaded for a benchmark, whose workers are separate.

        `on_measured` is called with each device that was measured.
        """
        self._settings = settings
        self._catalogue = catalogue
        self._directory = directory
        self._pool = pool
        self._registry = registry
        self._pythons = pythons
        self._spawn = spawn
        self._start = start
        self._on_measured = on_measured
        self._lock = asyncio.Lock()
        self.history = history

    async def submit(self, asked: BenchmarkRequest, caller: str, source: str = "asked") -> LiveJob:
        """Accept a benchmark job. Returns the active job if it measures exactly the same.

        Raises Validation, UnknownDevice, DeviceNotReady, UnknownModel, ModelNotDownloaded, ModelBroken, DiskFull.
        """
        entries = self._entries(asked.models)
        for engine in asked.engines:
            check_engine(engine)
        devices = [self._resolve(name) for name in asked.devices]
        request = {
            "devices": list(dict.fromkeys(devices)),
            "models": [entry.id for entry in entries],
            "engines": list(dict.fromkeys(asked.engines)),
            "runs": asked.runs,
            "streams": asked.streams,
            "source": source,
        }
        for job in self._registry.live.values():
            if job.task == TASK and job.active and job.parameters == request:
                return job
        job = await self._registry.add(new_row(TASK, None, request, caller))
        self._start(job, source=source)
        return job

    def handle(self, job: LiveJob) -> JobWork:
        """Return the work of a benchmark job."""
        return JobWork(self._run(job))

    def problems(self) -> list[dict[str, str | None]]:
        """Return the models that became slower with an update, as problems of `GET /api/health`."""
        return [regression.problem for regression in regressions(self.history.all())]

    async def _run(self, job: LiveJob) -> None:
        async with hold_lock(job, self._lock):
            await cancel_on(job.cancelling, self._directory.probes.wait_until_idle(), cancelled)
            await job.set_status("running", {})
            request = job.parameters
            entries = self._entries(request["models"])
            found, skipped = find_candidates(self._directory, entries, request["devices"], request["engines"])
            if not found:
                raise nothing_to_measure(skipped)
            log.info("benchmark started", extra={"job": job.id, "models": request["models"], "targets": len(found)})
            with make_scratch_dir(self._settings) as scratch_dir:
                runner = self._runner(job, Path(scratch_dir))
                results = await cancel_on(job.cancelling, runner.run(found, skipped), cancelled)
                if job.cancelling.is_set():
                    raise cancelled()
                measurements = report.measurements_of(self._directory, results, request["runs"], request["source"])
                self.history.add(measurements)
                job.result = await asyncio.to_thread(
                    report.result_of, self._directory.hardware(), results, measurements
                )
            log.info("benchmark finished", extra={"job": job.id, "measurements": len(measurements)})
            await job.emit("token", {"text": table.markdown(job.result), "count": 0})
        for device_id in {measurement.device for measurement in measurements}:
            self._on_measured(self._directory.device(device_id))

    def _runner(self, job: LiveJob, scratch_dir: Path) -> BenchmarkRunner:
        return BenchmarkRunner(
            self._settings,
            self._directory,
            self._pool,
            self._registry,
            self._pythons,
            self._spawn,
            runs=job.parameters["runs"],
            streams=job.parameters["streams"],
            scratch_dir=scratch_dir,
            cancelling=job.cancelling,
            report_progress=report_progress(job),
        )

    def _resolve(self, name: str) -> str:
        if device_id := self._directory.resolve(name).resolved:
            return device_id
        raise DeviceNotReady(f"No ready device matches {name!r}.", "Name a device by its id: see /api/devices.")

    def _entries(self, models: Sequence[str]) -> list[Entry]:
        """Return the models to measure. Raises UnknownModel, ModelNotDownloaded, ModelBroken, Validation."""
        catalogue = self._catalogue
        if models:
            entries = [catalogue.resolve(model) for model in dict.fromkeys(models)]
        else:
            entries = []
            for task in TASKS:
                with contextlib.suppress(TouchstoneError):  # a missing default model does not prevent the other's
                    entry = catalogue.default_for(task)
                    catalogue.path_of(entry)
                    entries.append(entry)
            entries = entries or [catalogue.default_for(TASKS[0])]
        for entry in entries:
            if entry.task not in TASKS:
                raise Validation(
                    f"models: {entry.id} is a model for {entry.task}, which benchmarks do not measure.",
                    f"Choose a model for {' or '.join(TASKS)}.",
                )
            catalogue.path_of(entry)
        return entries
