"""The ways a job may run: a device that is fit for the model now, the engine there, and the lane in which it waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Protocol

from backend.common import errors
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.engines import RunRequest, engines
from backend.models import Entry
from backend.runtimes.recipes import bringing
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.first_available import QueueRequest
from backend.scheduling.option_support import check_honoured, engines_honouring
from backend.scheduling.probing import ProbeService
from backend.scheduling.quarantine import DEATHS, Quarantine
from backend.scheduling.ranking import RankingQuery, engines_by_speed
from backend.scheduling.worker import WorkerKey
from backend.scheduling.worker_pool import WorkerPool


class SchedulingContext(Protocol):
    """What a run needs of the manager."""

    pool: WorkerPool
    probes: ProbeService
    quarantine: Quarantine

    @property
    def slots(self) -> int: ...
    def worker_died(self, device: str, model: str, error: TouchstoneError) -> None: ...
    def loading_lock(self, lane: str) -> asyncio.Lock: ...
    def device(self, id_: str) -> Device: ...
    def known_devices(self) -> list[Device]: ...
    def queue(self, hardware_id: str) -> DeviceQueue: ...
    def resolve(self, asked: str, task: str, engine: str | None, wish: RankingQuery) -> Resolution: ...
    def runs_beside_others(self, model: str) -> bool: ...


@dataclass(frozen=True)
class Target:
    """A device with the worker that would run the job there."""

    device: Device
    key: WorkerKey
    queue: DeviceQueue


class TargetSelector:
    """The ways of one job: its model, task and options decide which engines may run it."""

    def __init__(
        self, around: SchedulingContext, entry: Entry, task: str, asked: dict[str, Any], request: RunRequest | None
    ) -> None:
        """`asked` is the job's request; `request` is what its worker runs, None where it only loads."""
        self._around = around
        self._entry = entry
        self._task = task
        self._engine: str | None = asked["engine"]
        self._options = asked.get("options")
        self._request = request

    def ranking_query(self) -> RankingQuery:
        """What the measurements are asked for: this model by the engines that this job may take."""
        names = [self._engine] if self._engine else self._entry.engines
        fitting = engines_honouring(self._task, self._options, names) if self._options else names
        return RankingQuery(self._entry.id, tuple(fitting), self._around.runs_beside_others(self._entry.id))

    def require_ready(self, target: str) -> Device:
        """The device, if it is fit for the model now. Raises DeviceNotReady, Quarantined."""
        device = self._around.device(target)
        if refusal := refusal_of(device, self._entry.id):
            raise refusal
        return device

    def select(self, target: str, engine: str | None) -> Target:
        """The way that the job would take there. Raises what `usable` does, ModelIncompatible, UnsupportedParameter."""
        device = self.require_ready(target)
        name = self._engine_for(device, engine)
        only = self._entry.runtime
        served = [runtime for runtime, offered in device.served_by.items() if name in offered]
        runtime = next(runtime for runtime in served if only in (None, runtime))
        lane = self._around.queue(device.hardware_id or device.id)
        return Target(device, WorkerKey(device.id, runtime, name, self._entry.id), lane)

    def queue_request(self, way: Target) -> QueueRequest:
        """The turn that it waits for, shared with other jobs of the same model where the engine can."""
        share = way.key if engines()[way.key.engine].batches else None
        return QueueRequest(way.queue, share, self._around.slots)

    def _engine_for(self, device: Device, engine: str | None) -> str:
        wanted = [engine] if engine else self._entry.engines
        only = self._entry.runtime
        offered = device.engines if only is None else device.served_by.get(only, [])
        usable = [name for name in self._entry.engines if name in offered and name in wanted]
        if self._request:
            check_honoured(self._task, self._request.options, usable)
            usable = engines_honouring(self._task, self._request.options, usable)
        if usable:
            wish = replace(self.ranking_query(), engines=tuple(usable))
            return (
                self._around.pool.joinable_engine(device.id, self._entry.id, usable)
                or engines_by_speed(device, wish)[0]
            )
        if only is not None:
            raise errors.ModelIncompatible(
                f"The model {self._entry.id} runs in your environment {only} alone, which does not offer {device.id} "
                f"with {', '.join(self._entry.engines)}.",
                f"See `runtimes` for what is wrong with {only}; it needs numpy, soundfile, and torch or ONNX Runtime.",
            )
        named = f" with the engine {engine}" if engine else ""
        raise errors.ModelIncompatible(
            f"The model {self._entry.id} cannot run on {device.id}{named}: it runs with "
            f"{', '.join(self._entry.engines) or 'no engine of this version'}, and the device offers "
            f"{', '.join(device.engines) or 'none'}.",
            bringing([engine] if engine else self._entry.engines, device.backend, device.lacks),
        )


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
