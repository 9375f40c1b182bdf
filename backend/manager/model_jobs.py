"""Jobs that look after models: fetching, loading, converting, unloading. They stand in the history like any other."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from backend.common.errors import JobActive, TouchstoneError
from backend.common.types import Attempt, Memory, Progress, Receipt
from backend.jobs.admission import check_engine
from backend.jobs.executor import JobExecutor, cancel_on, cancelled
from backend.jobs.live_job import LiveJob, new_row
from backend.manager import memory_fit
from backend.models import Entry, conversion, download, registration
from backend.models.file_checks import FETCHABLE
from backend.models.sources import parse

if TYPE_CHECKING:
    from backend.manager.core import Core


async def add(manager: Core, source: str, id_: str | None, task: str | None, caller: str) -> LiveJob:
    """Fetches a model of the catalogue, or adds one and fetches it; a fetch that already runs is joined.

    Raises Validation, UnknownModel, ModelBroken, DiskFull.
    """
    async with manager.accepting:
        addition = registration.add(manager.catalogue, source, id_, task)
        entry = addition.entry
        if job := _active(manager, "download", entry):
            return job
        job = await _accepted(manager, "download", entry, {"source": str(parse(source) or source)}, caller)
        manager.registry.supervise(job, _download(manager, job, addition))
        return job


def remove(manager: Core, model: str) -> None:
    """Removes a model. Raises UnknownModel, JobActive while anything needs it, Validation if it is not ours."""
    for job in manager.registry.live.values():
        if job.model == model and job.active:
            raise JobActive(f"The job {job.id} ({job.task}) still needs {model}.", "Wait for it or cancel it first.")
    if manager.pool.holders_of(model):
        raise JobActive(f"{model} is loaded.", f"Unload it first: POST /api/models/{model}/unload")
    registration.remove(manager.catalogue, model)


async def load(manager: Core, model: str, device: str, engine: str | None, caller: str) -> LiveJob:
    """Loads a model without generating. Raises UnknownModel, UnknownDevice, ModelNotDownloaded, Validation."""
    entry = manager.catalogue.resolve(model)
    manager.catalogue.path_of(entry)
    check_engine(engine)
    manager.resolve(device, entry.task, engine)
    job = await _accepted(manager, "load", entry, {"device": device, "engine": engine, "fallback": "never"}, caller)
    run = JobExecutor(manager, job, entry)
    manager.registry.supervise(job, run.run(), run.note_receipt)
    return job


async def convert(manager: Core, model: str, to: str, caller: str) -> LiveJob:
    """Makes another engine's form of a model; if that very one is being made, its job is joined.

    Raises UnknownModel, ModelNotDownloaded, ModelBroken, Validation, JobActive while another form is being made.
    """
    async with manager.accepting:
        entry = manager.catalogue.resolve(model)
        conversion.check(entry, to, manager.settings)
        manager.catalogue.source_of(entry)
        if job := _active(manager, "convert", entry):
            if job.parameters["to"] == to:
                return job
            made = f"The job {job.id} is converting {entry.id} to {job.parameters['to']}."
            raise JobActive(made, "Wait for it or cancel it, then ask again.")
        job = await _accepted(manager, "convert", entry, {"to": to}, caller)
        manager.registry.supervise(job, _convert(manager, job, entry))
        return job


async def unload(manager: Core, model: str, caller: str) -> LiveJob:
    """Ends the workers that hold a model. Raises UnknownModel."""
    entry = manager.catalogue.resolve(model)
    job = await _accepted(manager, "unload", entry, {}, caller)
    manager.registry.supervise(job, _unload(manager, job, entry))
    return job


def resumed(manager: Core, job: LiveJob, entry: Entry) -> Coroutine[Any, Any, None] | None:
    """The work that an earlier server accepted: a fetch, an unload, a conversion; None for jobs that a worker runs."""
    if job.task == "convert":
        return _convert(manager, job, entry)
    if job.task == "download":
        return _download(manager, job, registration.Addition(entry, new=False))
    return _unload(manager, job, entry) if job.task == "unload" else None


def _active(manager: Core, task: str, entry: Entry) -> LiveJob | None:
    jobs = manager.registry.live.values()
    return next((job for job in jobs if job.task == task and job.model == entry.id and job.active), None)


async def _accepted(manager: Core, task: str, entry: Entry, request: dict[str, Any], caller: str) -> LiveJob:
    return await manager.registry.add(new_row(task, entry.id, {"model": entry.id, **request}, caller))


async def _download(manager: Core, job: LiveJob, addition: registration.Addition) -> None:
    entry = addition.entry
    await job.set_status("running", {"model": entry.id})
    if entry.source is None or entry.source.kind not in FETCHABLE:
        manager.catalogue.path_of(entry)  # a file that is here already
        return

    async def tell(progress: Progress) -> None:
        job.progress = progress
        await job.emit("progress", vars(progress))

    manager.catalogue.downloading.add(entry.id)
    try:
        came = await cancel_on(job.cancelling, download.fetch(entry, tell), cancelled)
        registration.settle(manager.catalogue, entry, came)
    except TouchstoneError:
        registration.forget_if_nothing_came(manager.catalogue, addition)
        raise
    finally:
        manager.catalogue.downloading.discard(entry.id)
    there = manager.catalogue.resolve(entry.id)
    shown = manager.catalogue.model(there)
    words = [
        came.get("said"),
        shown.reason,
        shown.remedy,
        "" if shown.reason else memory_fit.describe_fit(manager, there),
    ]
    if said := " ".join(filter(None, words)):
        await job.emit("token", {"text": said, "count": 0})


async def _convert(manager: Core, job: LiveJob, entry: Entry) -> None:
    to = job.parameters["to"]
    await job.set_status("running", {"model": entry.id})

    async def tell(progress: Progress) -> None:
        job.progress = progress
        await job.emit("progress", vars(progress))

    work = conversion.convert(entry, to, manager.settings, tell, manager.runtime_service.lock, manager.spawn)
    made = await cancel_on(job.cancelling, work, cancelled)
    await job.emit("token", {"text": conversion.said(to, made), "count": 0})


async def _unload(manager: Core, job: LiveJob, entry: Entry) -> None:
    await job.set_status("running", {"model": entry.id})
    for lane in await _lanes_with(manager, job, entry):
        turn = manager.queue(lane).acquire(job.caller)
        await cancel_on(job.cancelling, turn.__aenter__(), cancelled)
        try:
            for held in [held for held in manager.pool.holders_of(entry.id) if held.queue_id == lane]:
                worker, key = held.worker, held.worker.key
                before_bytes = worker.resident_bytes
                await manager.pool.unload(held)
                job.receipt = Receipt(
                    asked=key.device,
                    resolved=key.device,
                    resolved_reason="The model was loaded there.",
                    engine=key.engine,
                    runtime=key.runtime,
                    attempts=[Attempt(key.device, key.runtime, key.engine, job.started_at, job.started_at)],
                    # The process is gone, and its resident memory with it.
                    memory=Memory(before_bytes=before_bytes, after_bytes=0),
                    worker_pid=worker.pid,
                )
        finally:
            await turn.__aexit__(None, None, None)


async def _lanes_with(manager: Core, job: LiveJob, entry: Entry) -> list[str]:
    """The lanes where the model is loaded; all of them while jobs live that may be about to load it somewhere."""
    others = [other for other in manager.registry.live.values() if other.model == entry.id and other is not job]
    if not any(other.active and other.task not in ("download", "unload", "convert") for other in others):
        return list(dict.fromkeys(held.queue_id for held in manager.pool.holders_of(entry.id)))
    if manager.probes.probing:  # as those jobs may do, so that they come first
        await cancel_on(job.cancelling, manager.probes.wait_until_idle(), cancelled)
    return manager.queue_ids()
