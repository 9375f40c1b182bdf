"""How fast the devices of this machine are with its models: measured on request and when idle, kept for `auto`.

`bench devices` and `POST /api/bench` ask for it; so does the service itself once it has been idle (`idle.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from backend.common.config.strict_model import Name, StrictModel, to_validation_error
from backend.common.errors import DeviceNotReady, TouchstoneError, Validation
from backend.common.types import Device, Progress, Speed
from backend.jobs.admission import check_engine
from backend.jobs.executor import cancel_on, cancelled
from backend.jobs.live_job import LiveJob, new_row
from backend.manager.benchmarks import report, runner, table
from backend.manager.benchmarks.candidates import TASKS, candidates, nothing
from backend.manager.benchmarks.history import Measurement, Measurements
from backend.manager.benchmarks.regressions import regressions
from backend.models import Entry
from backend.models.file_checks import file_bytes

if TYPE_CHECKING:
    from backend.manager.core import Core

TASK = "bench"
RUNS, RUNS_LIMIT, STREAMS, STREAMS_LIMIT = 5, 50, 4, 64
Names = Annotated[list[Name], Field(max_length=64)]


class Asked(StrictModel):
    """What is to be measured; what is left out is all that is ready, with the default models."""

    devices: Names = Field(default_factory=list, description="Ids or aliases; an emulated one is measured if named")
    models: Names = Field(default_factory=list)
    engines: Names = Field(default_factory=list)
    runs: int = Field(default=RUNS, ge=1, le=RUNS_LIMIT, description="Rounds that count, after one that warms up")
    streams: int = Field(default=STREAMS, ge=1, le=STREAMS_LIMIT, description="How many at once, where the engine can")


def checked(body: Mapping[str, Any]) -> Asked:
    """Checks what did not come through HTTP. Raises Validation."""
    try:
        return Asked.model_validate(dict(body))
    except ValidationError as error:
        raise to_validation_error(error.errors(), Asked.model_fields) from error


class BenchmarkService:
    """Keeps the measurements. One job at a time measures."""

    def __init__(self, manager: Core) -> None:
        self._manager = manager
        self._turn = asyncio.Lock()
        self._speeds: dict[str, tuple[Device, tuple[int, str | None], list[Speed]]] = {}
        self.history = Measurements(manager.settings.data_dir / "measurements.json")

    async def submit(self, asked: Asked, caller: str, source: str = "asked") -> LiveJob:
        """Accepts a measurement as a job; one that measures the very same already is joined.

        Raises Validation, UnknownDevice, DeviceNotReady, UnknownModel, ModelNotDownloaded, ModelBroken, DiskFull.
        """
        entries = self._entries(asked.models)
        for engine in asked.engines:
            check_engine(engine)
        devices = [self._device(word) for word in asked.devices]
        request = {
            "devices": list(dict.fromkeys(devices)),
            "models": [entry.id for entry in entries],
            "engines": list(dict.fromkeys(asked.engines)),
            "runs": asked.runs,
            "streams": asked.streams,
            "source": source,
        }
        for job in self._manager.registry.live.values():
            if job.task == TASK and job.active and job.parameters == request:
                return job
        job = await self._manager.registry.add(new_row(TASK, None, request, caller))
        self._manager.registry.supervise(job, self.resume(job))
        return job

    async def resume(self, job: LiveJob) -> None:
        """The work of a job that was accepted, perhaps by an earlier server."""
        manager = self._manager

        async def tell(progress: Progress) -> None:
            job.progress = progress
            await job.emit("progress", vars(progress))

        async with _waiting(job, self._turn):
            await cancel_on(job.cancelling, manager.probes.wait_until_idle(), cancelled)
            await job.set_status("running", {})
            request = job.parameters
            entries = self._entries(request["models"])
            found, skipped = candidates(manager, entries, request["devices"], request["engines"])
            if not found:
                raise nothing(skipped)
            with runner.room(manager.settings) as folder:
                run = runner.Rounds(manager, request["runs"], request["streams"], Path(folder), job.cancelling, tell)
                measured = await cancel_on(job.cancelling, run.take(found, skipped), cancelled)
                if job.cancelling.is_set():
                    raise cancelled()
                kept = report.kept(manager, measured, request["runs"], request["source"])
                self.history.add(kept)
                job.result = await asyncio.to_thread(report.result, manager, measured, kept)
            await job.emit("token", {"text": table.markdown(job.result), "count": 0})
        for id_ in {one.device for one in kept}:
            manager.event_bus.publish("device", asdict(manager.device(id_)))

    def speeds(self, device: Device) -> list[Speed]:
        """What was measured of a device and still counts; computed anew only after something changed."""
        if device.state != "ready":
            return []
        known, now = self._speeds.get(device.id), (self.history.revision, self._driver(device))
        if known is None or known[0] is not device or known[1] != now:
            speeds = [one.speed for one in self.valid(device)]
            known = self._speeds[device.id] = (device, now, speeds)
        return known[2]

    def valid(self, device: Device) -> list[Measurement]:
        """The measurements that say anything of a device, and of the models' files, as they are now."""
        return self.history.valid(lambda one: self._counts(one, device))

    def _counts(self, one: Measurement, device: Device) -> bool:
        if one.device != device.id or not one.counts_for(device, self._driver(device)):
            return False
        entry = self._manager.catalogue.entries().get(one.speed.model)
        return entry is not None and one.model_bytes == file_bytes(entry.path_for(one.speed.engine))

    def problems(self) -> list[dict[str, str | None]]:
        """What health says of models that became slower with an update, from memory."""
        return [one.problem for one in regressions(self.history.all())]

    def _device(self, word: str) -> str:
        if found := self._manager.resolve(word).resolved:
            return found
        raise DeviceNotReady(f"No device stands behind {word!r} now.", "Name one by its id: see /api/devices.")

    def _driver(self, device: Device) -> str | None:
        hardware = self._manager.probes.table.surveyed.get(device.hardware_id or "")
        return hardware.driver if hardware else None

    def _entries(self, models: Sequence[str]) -> list[Entry]:
        """The models to measure. Raises UnknownModel, ModelNotDownloaded, ModelBroken, Validation."""
        catalogue = self._manager.catalogue
        if models:
            entries = [catalogue.resolve(model) for model in dict.fromkeys(models)]
        else:
            entries = []
            for task in TASKS:
                with contextlib.suppress(TouchstoneError):  # one that is not here is no reason not to measure the other
                    entry = catalogue.default_for(task)
                    catalogue.path_of(entry)
                    entries.append(entry)
            entries = entries or [catalogue.default_for(TASKS[0])]
        for entry in entries:
            if entry.task not in TASKS:
                raise Validation(
                    f"models: {entry.id} does {entry.task}, which is not measured.",
                    f"Choose a model for {' or '.join(TASKS)}.",
                )
            catalogue.path_of(entry)
        return entries


@contextlib.asynccontextmanager
async def _waiting(job: LiveJob, turn: asyncio.Lock) -> AsyncIterator[None]:
    """Waits for the one place; a cancel gives the wait up."""
    await cancel_on(job.cancelling, turn.acquire(), cancelled)
    try:
        yield
    finally:
        turn.release()
