"""Jobs that manage models: download, load, convert and unload. They are kept in the job history like any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from backend.child.handle import Spawn
from backend.common.config.settings import Settings
from backend.common.errors import JobActive, TouchstoneError
from backend.common.types import Attempt, Memory, Receipt
from backend.jobs.admission import check_engine
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.registry import JobRegistry
from backend.manager.job_dispatcher import JobWork, StartJob
from backend.manager.job_progress import report_progress
from backend.manager.memory_fit import MemoryFitEstimator
from backend.models import Catalogue, Entry, conversion, download, registration
from backend.models.file_checks import FETCHABLE
from backend.models.registration import Addition
from backend.models.sources import parse
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.load_size import GpuLayers
from backend.scheduling.option_support import check_honoured
from backend.scheduling.worker_pool import LoadedModel, WorkerPool
from backend.tasks.options import OPTIONS

log = logging.getLogger(__name__)
_LOADS_NOTHING = ("download", "unload", "convert")  # tasks that never load a model into a worker


class ModelJobs:
    """Accepts and runs the jobs that manage models."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        memory_fit: MemoryFitEstimator,
        install_lock: asyncio.Lock,
        spawn: Spawn,
        start: StartJob,
    ) -> None:
        """`install_lock` is held while an environment is installed: a conversion may install one."""
        self._settings = settings
        self._catalogue = catalogue
        self._directory = directory
        self._pool = pool
        self._registry = registry
        self._memory_fit = memory_fit
        self._install_lock = install_lock
        self._spawn = spawn
        self._start = start
        self._accept_lock = asyncio.Lock()  # without it two requests at once could both find no active job
        self._additions: dict[str, Addition] = {}  # by job id, from acceptance to start

    async def add(self, source: str, id_: str | None, task: str | None, caller: str) -> LiveJob:
        """Download a model of the catalogue, or register a new one and download it. Returns an active job if any.

        Raises Validation, UnknownModel, ModelBroken, DiskFull.
        """
        async with self._accept_lock:
            addition = registration.add(self._catalogue, source, id_, task)
            if job := self._active("download", addition.entry):
                return job
            job = await self._accept("download", addition.entry, {"source": str(parse(source) or source)}, caller)
            self._additions[job.id] = addition
            self._start(job)
            return job

    def remove(self, model: str) -> None:
        """Remove a model. Raises UnknownModel, JobActive if it is in use, Validation if it cannot be removed."""
        for job in self._registry.live.values():
            if job.model == model and job.active:
                raise JobActive(
                    f"The job {job.id} ({job.task}) still needs {model}.", "Wait for it or cancel it first."
                )
        if self._pool.holders_of(model):
            raise JobActive(f"{model} is loaded.", f"Unload it first: POST /api/models/{model}/unload")
        registration.remove(self._catalogue, model)
        log.info("model removed", extra={"model": model})

    async def load(
        self,
        model: str,
        device: str,
        engine: str | None,
        caller: str,
        gpu_layers: GpuLayers | None = None,
    ) -> LiveJob:
        """Load a model without generating. `gpu_layers`: optional, layers on the card.

        Raises UnknownModel, UnknownDevice, ModelNotDownloaded, Validation, UnsupportedParameter.
        """
        entry = self._catalogue.resolve(model)
        self._catalogue.path_of(entry)
        check_engine(engine)
        self._directory.resolve(device, entry.task, engine)
        if gpu_layers is not None and entry.task in OPTIONS:
            check_honoured(entry.task, {"gpu_layers": gpu_layers}, [engine] if engine else entry.engines)
        request: dict[str, str | int | None] = {"device": device, "engine": engine, "fallback": "never"}
        if gpu_layers is not None:
            request["gpu_layers"] = gpu_layers
        job = await self._accept("load", entry, request, caller)
        self._start(job, device=device)
        return job

    async def convert(self, model: str, form: str, caller: str) -> LiveJob:
        """Convert a model to another engine's form. Returns the active job if it makes the same form.

        Raises UnknownModel, ModelNotDownloaded, ModelBroken, Validation, JobActive during another conversion of it.
        """
        async with self._accept_lock:
            entry = self._catalogue.resolve(model)
            conversion.check(entry, form, self._settings)
            self._catalogue.source_of(entry)
            if job := self._active("convert", entry):
                if job.parameters["to"] == form:
                    return job
                detail = f"The job {job.id} is converting {entry.id} to {job.parameters['to']}."
                raise JobActive(detail, "Wait for it or cancel it, then try again.")
            job = await self._accept("convert", entry, {"to": form}, caller)
            self._start(job)
            return job

    async def unload(self, model: str, caller: str) -> LiveJob:
        """Stop the workers that hold a model. Raises UnknownModel."""
        job = await self._accept("unload", self._catalogue.resolve(model), {}, caller)
        self._start(job)
        return job

    def handle_download(self, job: LiveJob) -> JobWork:
        """Return the work of a `download` job. Raises UnknownModel."""
        addition = self._additions.pop(job.id, None)
        return JobWork(self._download(job, addition or Addition(self._entry(job), new=False)))

    def handle_convert(self, job: LiveJob) -> JobWork:
        """Return the work of a `convert` job. Raises UnknownModel."""
        return JobWork(self._convert(job, self._entry(job)))

    def handle_unload(self, job: LiveJob) -> JobWork:
        """Return the work of an `unload` job. Raises UnknownModel."""
        return JobWork(self._unload(job, self._entry(job)))

    def _entry(self, job: LiveJob) -> Entry:
        return self._catalogue.resolve(job.model or "")

    def _active(self, task: str, entry: Entry) -> LiveJob | None:
        jobs = self._registry.live.values()
        return next((job for job in jobs if job.task == task and job.model == entry.id and job.active), None)

    async def _accept(self, task: str, entry: Entry, request: Mapping[str, str | int | None], caller: str) -> LiveJob:
        return await self._registry.add(new_row(task, entry.id, {"model": entry.id, **request}, caller))

    async def _download(self, job: LiveJob, addition: Addition) -> None:
        entry = addition.entry
        await job.set_status("running", {"model": entry.id})
        if entry.source is None or entry.source.kind not in FETCHABLE:
            self._catalogue.path_of(entry)  # a local file needs no download
            return
        fields = {"job": job.id, "model": entry.id}
        log.info("download started", extra=fields)
        self._catalogue.downloading.add(entry.id)
        try:
            fetched = await cancel_on(job.cancelling, download.fetch(entry, report_progress(job)), cancelled)
            registration.settle(self._catalogue, entry, fetched)
        except TouchstoneError as error:
            log.warning("download failed", extra={**fields, "code": error.code, "detail": error.detail})
            registration.forget_if_nothing_came(self._catalogue, addition)
            raise
        finally:
            self._catalogue.downloading.discard(entry.id)
        log.info("download finished", extra=fields)
        entry = self._catalogue.resolve(entry.id)
        model = self._catalogue.model(entry)
        fit = "" if model.reason else self._memory_fit.describe(entry)
        if text := " ".join(filter(None, [fetched.get("said"), model.reason, model.remedy, fit])):
            await job.emit("token", {"text": text, "count": 0})

    async def _convert(self, job: LiveJob, entry: Entry) -> None:
        form: str = job.parameters["to"]
        await job.set_status("running", {"model": entry.id})
        fields = {"job": job.id, "model": entry.id, "form": form}
        log.info("conversion started", extra=fields)
        work = conversion.convert(entry, form, self._settings, report_progress(job), self._install_lock, self._spawn)
        try:
            converted = await cancel_on(job.cancelling, work, cancelled)
        except TouchstoneError as error:
            log.warning("conversion failed", extra={**fields, "code": error.code, "detail": error.detail})
            raise
        log.info("conversion finished", extra={**fields, "bytes": converted["bytes"]})
        await job.emit("token", {"text": conversion.said(form, converted), "count": 0})

    async def _unload(self, job: LiveJob, entry: Entry) -> None:
        await job.set_status("running", {"model": entry.id})
        for queue_id in await self._queues_with(job, entry):
            turn = self._directory.queue(queue_id).acquire(job.caller)
            await cancel_on(job.cancelling, turn.__aenter__(), cancelled)
            try:
                for loaded in [held for held in self._pool.holders_of(entry.id) if held.queue_id == queue_id]:
                    await self._unload_one(job, loaded)
            finally:
                await turn.__aexit__(None, None, None)

    async def _unload_one(self, job: LiveJob, loaded: LoadedModel) -> None:
        worker, key = loaded.worker, loaded.worker.key
        before_bytes = worker.resident_bytes
        await self._pool.unload(loaded, "unload requested", job.id)
        job.receipt = Receipt(
            asked=key.device,
            resolved=key.device,
            resolved_reason="The model was loaded there.",
            engine=key.engine,
            runtime=key.runtime,
            attempts=[Attempt(key.device, key.runtime, key.engine, job.started_at, job.started_at)],
            # The process has exited, so its resident memory is free.
            memory=Memory(before_bytes=before_bytes, after_bytes=0),
            worker_pid=worker.pid,
        )

    async def _queues_with(self, job: LiveJob, entry: Entry) -> list[str]:
        """Return the queues of the hardware that holds the model; all queues while active jobs may still load it."""
        others = [other for other in self._registry.live.values() if other.model == entry.id and other is not job]
        if not any(other.active and other.task not in _LOADS_NOTHING for other in others):
            return list(dict.fromkeys(loaded.queue_id for loaded in self._pool.holders_of(entry.id)))
        if self._directory.probes.probing:  # those jobs may wait for the probes; this one must come after them
            await cancel_on(job.cancelling, self._directory.probes.wait_until_idle(), cancelled)
        return self._directory.queue_ids()
