"""Which devices a model fits, whole or partly, before it is loaded: by the plan that a load makes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from backend.common.bounded_reads import bounded_read
from backend.common.commands import command
from backend.common.config.settings.schema import Text
from backend.common.errors import TouchstoneError
from backend.common.formats.safetensors import is_checkpoint
from backend.common.memory_plan import Corrections
from backend.common.memory_plan.plan import gigabytes
from backend.common.types import Device, Model, ModelFit
from backend.manager.model_advice import memory_places
from backend.models import Catalogue, Entry
from backend.models.entries import is_gguf
from backend.models.size_fit import fits_of
from backend.runtimes.recipes import costs, install_hint, runtime_for
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.load_size import LoadSize, find_load_size
from backend.scheduling.ranking import RankingQuery, engine_reason, engines_by_speed
from backend.scheduling.worker_pool import WorkerPool

_KEPT = 4096  # sizes of models on devices
_ROUNDED_BYTES = 1 << 26  # free memory changes all the time: plans are kept for steps of 64 MiB
_Stamp = tuple[int, int, int]  # bytes, time of the last change, inode


@dataclass(frozen=True)
class _Subject:
    """A model's file as it is now, an engine and a device: what a size depends on, besides the free memory."""

    engine: str
    path: str
    stamp: _Stamp
    device: str
    corrections: Corrections


class MemoryFitEstimator:
    """Compares the memory that models need with the memory of the ready devices.

    Sizes are kept per state of the file, so that a list of all models reads only files that changed.
    """

    def __init__(self, text: Text, directory: DeviceDirectory, pool: WorkerPool) -> None:
        self._text = text
        self._directory = directory
        self._pool = pool
        self._sizes: dict[tuple[_Subject, int | None], LoadSize] = {}

    def fits_of(self, entry: Entry) -> list[ModelFit]:
        """Return the fit of a model for each ready device that has an engine for it. It reads files."""
        return [
            fit
            for device, free in self._ready_devices()
            if (fit := self._fit(entry, device, free, self._pool.system_free_bytes()))
        ]

    def list_models(self, catalogue: Catalogue) -> list[Model]:
        """Return all models of the catalogue, those that are ready with `fits` and `memory_bytes`. It reads files."""
        return self._read_models(catalogue, self._ready_devices(), self._pool.system_free_bytes())

    async def read_models(self, catalogue: Catalogue) -> list[Model]:
        """Return `list_models`, computed in a thread."""
        devices, system_free = self._ready_devices(), self._pool.system_free_bytes()
        return await asyncio.to_thread(self._read_models, catalogue, devices, system_free)

    def describe(self, entry: Entry) -> str:
        """Return the fits as a sentence, or what to do if no device runs the model; empty if both are unknown."""
        fits = self.fits_of(entry)
        ready = [device for device, _ in self._ready_devices()]
        if ready and entry.engines and not fits:
            convert = (
                f" Or convert it: `{command(f'models convert {entry.id}')}`." if is_checkpoint(entry.target) else ""
            )
            install = install_hint(entry.engines, ready[0].backend, ready[0].lacks)
            return f"No device here runs it as it is. {install}{convert}"
        return _sentence(fits)

    def _ready_devices(self) -> list[tuple[Device, int | None]]:
        """Return the ready devices with the memory that a model could get there now. Call it in the event loop."""
        return [
            (device, self._pool.available_bytes(device.hardware_id or device.id, device))
            for device in self._directory.known_devices()
            if device.state == "ready"
        ]

    def _read_models(
        self, catalogue: Catalogue, devices: list[tuple[Device, int | None]], system_free: int | None
    ) -> list[Model]:
        found = []
        for model, entry in catalogue.models_with_entries():
            if model.state == "ready":
                fits = [fit for device, free in devices if (fit := self._fit(entry, device, free, system_free))]
                model = replace(model, fits=fits, memory_bytes=_by_kind(fits, [device for device, _ in devices]))
            elif model.state == "downloadable" and model.bytes:
                model = replace(model, fits=_estimated_fits(entry, model.bytes, [device for device, _ in devices]))
            found.append(model)
        return found

    def _fit(self, entry: Entry, device: Device, free: int | None, system_free: int | None) -> ModelFit | None:
        """Return the fit for a device, None if no engine runs the model there."""
        usable = tuple(name for name in entry.engines if name in device.engines)
        if not usable:
            return None
        query = RankingQuery(entry.id, usable)
        engine = engines_by_speed(device, query)[0]
        fit = self._fit_with(engine, entry, device, free, system_free)
        return replace(fit, engine_reason=f"{engine_reason(device, query)}{_better_engine(entry, device)}")

    def _fit_with(
        self, engine: str, entry: Entry, device: Device, free: int | None, system_free: int | None
    ) -> ModelFit:
        try:
            path = entry.path_for(engine)
            facts = path.stat()
            corrections = self._pool.corrections_of(device.backend)
            stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
            subject = _Subject(engine, str(path), stamp, device.id, corrections)
            whole = self._size(subject, device, None, None)
            if whole.needed_bytes is None or free is None or whole.needed_bytes <= free or whole.plan is None:
                return _plain_fit(device, engine, whole, free)
            rounded = free // _ROUNDED_BYTES * _ROUNDED_BYTES
            part = self._size(subject, device, rounded, system_free)
            return _planned_fit(device, engine, whole, part, free)
        except (TouchstoneError, OSError, ValueError):
            return ModelFit(device.id, None, "Its files cannot be read.", engine, None, free)

    def _size(self, subject: _Subject, device: Device, free: int | None, system_free: int | None) -> LoadSize:
        key = (subject, free)
        size = self._sizes.get(key)
        if size is None:
            find = partial(
                find_load_size,
                subject.engine,
                subject.path,
                device,
                self._text,
                free_bytes=free,
                system_free_bytes=system_free,
                corrections=subject.corrections,
            )
            while len(self._sizes) >= _KEPT:
                del self._sizes[next(iter(self._sizes))]
            size = self._sizes[key] = bounded_read(Path(subject.path), find)
        return size


def _estimated_fits(entry: Entry, size_bytes: int, devices: Sequence[Device]) -> list[ModelFit]:
    """Return the fits of a GGUF file that is not here, estimated from its size."""
    engine_of = {
        device.id: next((each for each in entry.engines if each in device.engines), None) for device in devices
    }
    able = [device for device in devices if engine_of[device.id]]
    if not able or not is_gguf(entry):
        return []
    found = fits_of(size_bytes, memory_places(able))
    return [
        ModelFit(fit.device, fit.fits, fit.reason, str(engine_of[fit.device]), fit.needed_bytes)
        for fit in found
        if fit.device in engine_of
    ]


def _better_engine(entry: Entry, device: Device) -> str:
    """Return which runtime lets an engine run the model that comes before all that the device offers; else empty."""
    first = entry.engines[0]
    recipe = None if first in device.engines or first in device.lacks else runtime_for([first], device.backend)
    if recipe is None or (build := recipe.build()) is None:
        return ""
    return f" {first} comes before it: `{command(f'runtimes install {recipe.name}')}` ({costs(build)})."


def _plain_fit(device: Device, engine: str, size: LoadSize, free: int | None) -> ModelFit:
    """Return the fit of a model that is on the device as one, or not at all."""
    needed = size.needed_bytes
    if needed is None or free is None:
        unknown = "The memory that it needs is unknown." if needed is None else "The free memory is unknown."
        return ModelFit(device.id, None, unknown, engine, needed, free)
    least = size.least_bytes if size.plan is None and size.least_bytes is not None else needed
    arithmetic = _arithmetic(size) or gigabytes(needed)
    reason = f"{arithmetic}; {device.id} has {gigabytes(free)} free."
    return ModelFit(device.id, "yes" if least <= free else "no", reason, engine, needed, free)


def _planned_fit(device: Device, engine: str, whole: LoadSize, part: LoadSize, free: int) -> ModelFit:
    """Return the fit of a model that does not fit as one, by the plan for the free memory."""
    plan = part.plan
    assert plan and whole.needed_bytes is not None
    needs = f"{_arithmetic(whole)}; {device.id} has {gigabytes(free)} free"
    if plan.fits and device.kind == "cpu":  # with a shorter context
        return ModelFit(
            device.id,
            "partly",
            f"{needs}: with {plan.context_tokens:,} tokens it fits.",
            engine,
            whole.needed_bytes,
            free,
        )
    if plan.fits and plan.gpu_layers:
        experts = f", the experts of {plan.expert_layers} in system memory" if plan.expert_layers else ""
        reason = f"{needs}: {plan.gpu_layers} of {plan.layers} layers{experts}."
        return ModelFit(device.id, "partly", reason, engine, whole.needed_bytes, free)
    return ModelFit(device.id, "no", f"{needs}.", engine, whole.needed_bytes, free)


def _arithmetic(size: LoadSize) -> str:
    """Return the terms of a plan with everything in one place; empty without a plan."""
    plan = size.plan
    if plan is None:
        return ""
    share = plan.shares[0] if plan.shares else None
    weights = share.weight_bytes if share else plan.system_weight_bytes
    cache = share.cache_bytes if share else plan.system_cache_bytes
    other = share.compute_bytes + share.driver_bytes if share else plan.system_other_bytes
    cached = f"{gigabytes(cache)} cache at {plan.context_tokens:,} tokens"
    times = f" × {plan.slots}" if plan.slots > 1 else ""
    return f"{gigabytes(weights)} weights + {cached}{times} + {gigabytes(other)}"


def _by_kind(fits: Sequence[ModelFit], devices: Sequence[Device]) -> dict[str, int]:
    """Return the memory that a model needs, by kind of device."""
    kinds = {device.id: device.kind for device in devices}
    return {kinds[fit.device]: fit.needed_bytes for fit in fits if fit.needed_bytes is not None}


def _sentence(fits: Sequence[ModelFit]) -> str:
    clauses = []
    words = {"yes": "fits", "partly": "fits partly", "no": "does not fit"}
    for fit in fits:
        if fit.fits is not None and fit.needed_bytes is not None and fit.free_bytes is not None:
            sizes = f"{gigabytes(fit.needed_bytes)} of {gigabytes(fit.free_bytes)}"
            clauses.append(f"{words[fit.fits]} {fit.device} ({fit.engine}, {sizes})")
    return f"It {', '.join(clauses)}." if clauses else ""
