"""Target selection: the devices, runtimes and engines that may run a job, and the queue of each device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from backend.common import errors
from backend.common.commands import command
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.engines import engines
from backend.models import Entry
from backend.runtimes.recipes import install_hint
from backend.scheduling.device_queue import DeviceQueue, QueueRequest
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.option_support import check_honoured, engines_honouring
from backend.scheduling.probing import ProbeService
from backend.scheduling.quarantine import DEATHS, Combination, Quarantine, WorkerDeath
from backend.scheduling.ranking import RankingQuery, engines_by_speed
from backend.scheduling.worker import WorkerKey
from backend.scheduling.worker_pool import WorkerPool


class SchedulingContext(Protocol):
    """The members of the manager that scheduling uses."""

    pool: WorkerPool
    probes: ProbeService
    quarantine: Quarantine

    def worker_died(self, death: WorkerDeath) -> None: ...
    def loading_lock(self, hardware_id: str) -> asyncio.Lock: ...
    def device(self, id_: str) -> Device: ...
    def known_devices(self) -> list[Device]: ...
    def queue(self, hardware_id: str) -> DeviceQueue: ...
    def resolve(self, asked: str, task: str, engine: str | None, query: RankingQuery, /) -> Resolution: ...
    def runs_beside_others(self, model: str) -> bool: ...


@dataclass(frozen=True)
class Target:
    """A device, the worker that would run the job on it, and the queue to wait in.

    `engine` is the one that the request or the device's alias names. Optional.
    """

    device: Device
    key: WorkerKey
    queue: DeviceQueue
    engine: str | None = None


@dataclass(frozen=True)
class Plan:
    """Where a job may run: decided once, when its executor starts.

    `resolutions` are those of the named devices, in the caller's order. `targets` and `refusals` divide these devices,
    by id, into those that can run the job and those that cannot; a name with no device behind it is refused under that
    name. `is_ready`: all of them are ready, so the job need not wait for probes. `unchecked`: the ids of those that may
    offer a fitting engine in a moment, since their engines are being checked.
    """

    query: RankingQuery
    resolutions: tuple[Resolution, ...]
    targets: Mapping[str, Target]
    refusals: Mapping[str, TouchstoneError]
    is_ready: bool
    unchecked: frozenset[str]

    @property
    def devices(self) -> list[str]:
        """The named devices, those that can run the job first."""
        return [*self.targets, *self.refusals]

    def restrict(self, devices: Sequence[str]) -> Plan:
        """Return the plan for some of its devices, in this order."""
        return replace(
            self,
            targets={device: self.targets[device] for device in devices if device in self.targets},
            refusals={device: self.refusals[device] for device in devices if device in self.refusals},
        )


class TargetSelector:
    """Makes the plan of one job. The job's model, task, engine and options decide which engines may run it."""

    def __init__(
        self,
        context: SchedulingContext,
        entry: Entry,
        task: str,
        *,
        engine: str | None = None,
        options: Mapping[str, Any] | None = None,
        fingerprint: Callable[[], str] = str,
    ) -> None:
        """`engine` is the one that the request names. `options` is None for a job that only loads the model.

        `fingerprint` returns what identifies the request in the quarantine, by default nothing.
        """
        self._fingerprint = fingerprint
        self._context = context
        self._entry = entry
        self._task = task
        self._engine = engine
        self._options = options

    def make_plan(self, names: Sequence[str]) -> Plan:
        """Resolve the named devices and select a target on each. Raises UnknownDevice, Validation."""
        query = self._build_query()
        resolutions = tuple(self._context.resolve(name, self._entry.task, self._engine, query) for name in names)
        targets: dict[str, Target] = {}
        refusals: dict[str, TouchstoneError] = {}
        is_ready = True
        for name, resolution in zip(names, resolutions, strict=True):
            if resolution.resolved is None:
                refusals[name.strip().lower()] = no_ready_device_error(name, resolution.reason)
                is_ready = False
                continue
            device = self._context.device(resolution.resolved)
            is_ready = is_ready and device.state == "ready"
            if device.id not in targets:
                try:
                    targets[device.id] = self._target_on(device, resolution.engine or self._engine, query)
                except TouchstoneError as error:
                    refusals.setdefault(device.id, error)
        unfit = [id_ for id_, error in refusals.items() if isinstance(error, errors.ModelIncompatible)]
        unchecked = frozenset(id_ for id_ in unfit if self._context.probes.is_checking(id_))
        return Plan(query, resolutions, targets, refusals, is_ready, unchecked)

    def select(self, device_id: str, engine: str | None, query: RankingQuery) -> Target:
        """Return the target on a device that is not part of the plan.

        Raises DeviceNotReady, Quarantined, ModelIncompatible, UnsupportedParameter.
        """
        return self._target_on(self._context.device(device_id), engine, query)

    def refresh(self, target: Target, query: RankingQuery) -> Target:
        """Return the target as its device is now: the same one if the device has not changed. Raises as `select`."""
        device = self._context.device(target.device.id)
        if device == target.device and not self._refusal(device.id, target.key.engine):
            return target
        return self._target_on(device, target.engine, query)

    def queue_request(self, target: Target) -> QueueRequest:
        """Return the place to wait for, shared with other jobs of the same model where the engine batches."""
        batch_key = target.key if engines()[target.key.engine].batches else None
        return QueueRequest(target.queue, batch_key, lambda: self._context.pool.slots_for(target.key))

    def _build_query(self) -> RankingQuery:
        """Return what to rank for: this model by the engines that this job may use."""
        names = [self._engine] if self._engine else self._entry.engines
        fitting = engines_honouring(self._task, self._options, names) if self._options else names
        return RankingQuery(self._entry.id, tuple(fitting), self._context.runs_beside_others(self._entry.id))

    def _target_on(self, device: Device, engine: str | None, query: RankingQuery) -> Target:
        if refusal := unusable_error(device, self._entry.id):
            raise refusal
        name = self._choose_engine(device, engine, query)
        only = self._entry.runtime
        serving = [runtime for runtime, offered in device.served_by.items() if name in offered]
        runtime = next(runtime for runtime in serving if only in (None, runtime))
        queue = self._context.queue(device.hardware_id or device.id)
        return Target(device, WorkerKey(device.id, runtime, name, self._entry.id), queue, engine)

    def _refusal(self, device: str, engine: str) -> errors.Quarantined | None:
        """Return why the quarantine forbids this job with an engine on a device, or None."""
        if self._context.quarantine.is_empty:
            return None
        place = Combination(device, engine, self._entry.id)
        return self._context.quarantine.refusal(place, self._fingerprint)

    def _choose_engine(self, device: Device, engine: str | None, query: RankingQuery) -> str:
        """Return the engine to use on a device: one with a batch to join, else the fastest or first documented one.

        Raises ModelIncompatible, UnsupportedParameter, Quarantined.
        """
        wanted = [engine] if engine else self._entry.engines
        only = self._entry.runtime
        offered = device.engines if only is None else device.served_by.get(only, [])
        usable = [name for name in self._entry.engines if name in offered and name in wanted]
        if self._options is not None:
            check_honoured(self._task, self._options, usable)
            usable = engines_honouring(self._task, self._options, usable)
        refusals = {name: self._refusal(device.id, name) for name in usable}
        for name in usable:
            if (refusal := refusals[name]) and all(refusals.values()):
                raise refusal
        usable = [name for name in usable if refusals[name] is None]
        if usable:
            joinable = self._context.pool.joinable_engine(device.id, self._entry.id, usable)
            return joinable or engines_by_speed(device, replace(query, engines=tuple(usable)))[0]
        if only is not None:
            raise errors.ModelIncompatible(
                f"The model {self._entry.id} runs only in your environment {only}, which does not offer {device.id} "
                f"with {', '.join(self._entry.engines)}.",
                f"`{command('runtimes')}` shows what is wrong with {only}; it needs numpy, soundfile, and torch or "
                "ONNX Runtime.",
            )
        named = f" with the engine {engine}" if engine else ""
        raise errors.ModelIncompatible(
            f"The model {self._entry.id} cannot run on {device.id}{named}: it runs with "
            f"{', '.join(self._entry.engines) or 'no engine of this version'}, and the device offers "
            f"{', '.join(device.engines) or 'none'}.",
            install_hint([engine] if engine else self._entry.engines, device.backend, device.lacks),
        )


def no_ready_device_error(asked: str, reason: str) -> errors.DeviceNotReady:
    """Return the error for an alias that no ready device matches."""
    return errors.DeviceNotReady(
        f"No ready device matches {asked!r}: {reason}", "Choose one of the ready devices in /api/devices."
    )


def unusable_error(device: Device, model: str) -> TouchstoneError | None:
    """Return why a model may not run on a device now, or None."""
    if model in device.quarantined_models:
        return errors.Quarantined(
            f"{model} on {device.id} is quarantined: its worker died {DEATHS} times without finishing a job.",
            f"Use another device or model, or retry with POST /api/devices/{device.id}/release.",
        )
    if device.state == "ready":
        return None
    error_class = errors.Quarantined if device.state == "quarantined" else errors.DeviceNotReady
    return error_class(
        f"The device {device.id} is {device.state}: {device.reason}", device.remedy or "Choose another device."
    )
