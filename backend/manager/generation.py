"""Generation jobs: admission, idempotency keys, reruns, and the executor that runs them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping

from backend.common.config.settings import Settings
from backend.common.errors import QueueFull, Validation
from backend.common.types import Device
from backend.jobs.admission import admit
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.executor import JobExecutor
from backend.jobs.generate_request import GenerateRequest, parse_request, served_tasks
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.multi_device import MultiDeviceJob
from backend.jobs.registry import JobRegistry
from backend.jobs.uploads import UploadStore
from backend.manager.job_dispatcher import JobWork, StartJob
from backend.models import Catalogue, Entry
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.quarantine import WorkerDeath
from backend.scheduling.ranking import ANY, RankingQuery
from backend.scheduling.worker_pool import WorkerPool


class JobContext:
    """What admission and executors use: an AdmissionContext and an ExecutorContext."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        uploads: UploadStore,
        artifacts: ArtifactStore,
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.pool = pool
        self.uploads = uploads
        self.artifacts = artifacts
        self.probes = directory.probes
        self.quarantine = directory.quarantine
        self._directory = directory
        self._registry = registry

    def known_devices(self) -> list[Device]:
        """Return all devices found so far."""
        return self._directory.known_devices()

    def device(self, id_: str) -> Device:
        """Return one device."""
        return self._directory.device(id_)

    def queue(self, hardware_id: str) -> DeviceQueue:
        """Return the queue of a hardware id."""
        return self._directory.queue(hardware_id)

    def loading_lock(self, hardware_id: str) -> asyncio.Lock:
        """Return the lock under which models are loaded on a hardware."""
        return self._directory.loading_lock(hardware_id)

    def resolve(
        self, asked: str, task: str = "text", engine: str | None = None, query: RankingQuery = ANY
    ) -> Resolution:
        """Return the device that a caller's name means now. Raises UnknownDevice, Validation."""
        return self._directory.resolve(asked, task, engine, query)

    def worker_died(self, death: WorkerDeath) -> None:
        """Count the death of a worker."""
        self._directory.record_worker_death(death)

    def runs_beside_others(self, model: str) -> bool:
        """Return whether a job of the model would share its worker with other jobs."""
        jobs = sum(job.active and job.model == model for job in self._registry.live.values())
        return jobs > 1 and self.pool.shares_workers(model)


class GenerationService:
    """Accepts generation jobs and runs them. Prompts are logged only if the settings ask for it (`log.prompts`)."""

    def __init__(self, context: JobContext, registry: JobRegistry, start: StartJob) -> None:
        self._context = context
        self._registry = registry
        self._start = start
        self._key_lock = asyncio.Lock()
        self._entries: dict[str, Entry] = {}  # by job id, from admission to start: reading the catalogue takes time

    async def submit(self, request: GenerateRequest, caller: str, key: str | None = None) -> LiveJob | str:
        """Accept a generation job. Returns the id of an earlier job if the same Idempotency-Key made one.

        Raises QueueFull, DiskFull, and what `admit` raises.
        """
        if key is None:
            return await self._accept(request, caller, {})
        async with self._key_lock:
            text = json.dumps(request.model_dump(exclude={"stream"}), sort_keys=True)
            request_hash = hashlib.sha256(text.encode()).hexdigest()
            if job_id := await self._registry.find_by_key(key, request_hash):
                return job_id
            return await self._accept(request, caller, {"idempotency_key": key, "request_hash": request_hash})

    async def rerun(self, job_id: str, device: str | None, caller: str) -> LiveJob:
        """Accept the request of an earlier job again. Raises UnknownJob, and what `submit` raises."""
        view = await self._registry.view(job_id)
        if view["task"] not in served_tasks():
            raise Validation(f"A {view['task']} job cannot be run again.", "Send the original request again.")
        request = {name: value for name, value in view["request"].items() if name in GenerateRequest.model_fields}
        changes = {"device": device, "devices": None, "spread": None} if device else {}
        return await self._accept(parse_request({**request, **changes}), caller, {})

    def handle(self, job: LiveJob) -> JobWork:
        """Return the work of a generation or `load` job. Raises UnknownModel, UnknownDevice, Validation."""
        entry = self._entries.pop(job.id, None) or self._context.catalogue.resolve(job.model or "")
        executor_class = MultiDeviceJob if job.request.is_shared_out else JobExecutor
        executor = executor_class(self._context, job, entry)
        return JobWork(executor.run(), executor.note_receipt)

    async def _accept(self, request: GenerateRequest, caller: str, key: Mapping[str, str]) -> LiveJob:
        context = self._context
        job_request, entry = await admit(context, request)
        queued = self._registry.count("queued")
        if queued >= context.settings.queue.limit:
            raise QueueFull(
                f"{queued} jobs are queued, which is the limit.",
                "Retry later, or raise queue.limit.",
                retry_after_s=10,
            )
        job = await self._registry.add(
            {**new_row(job_request.task, job_request.model, job_request.to_row(), caller), **key}
        )
        self._entries[job.id] = entry
        texts = {"prompt": job_request.prompt, "messages": job_request.messages} if context.settings.log.prompts else {}
        self._start(job, device=job_request.device, **texts)
        return job
