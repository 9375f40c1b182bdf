"""Estimates which devices a model fits before it is loaded, by the same numbers that loading itself uses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from backend.common.bounded_reads import bounded_read
from backend.common.commands import command
from backend.common.config.settings.schema import Text
from backend.common.errors import TouchstoneError
from backend.common.formats.safetensors import is_checkpoint
from backend.common.types import Device, Model
from backend.engines import load_engine
from backend.models import Catalogue, Entry
from backend.runtimes.recipes import install_hint
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.worker_pool import WorkerPool, least_bytes


@dataclass(frozen=True)
class DeviceFit:
    """Whether a model fits a device.

    `needed_bytes` is the estimate for weights and KV cache. `free_bytes` counts memory that an eviction of idle models
    would free. Both are optional; `fits` is None if either is unknown.
    """

    device: str
    engine: str
    needed_bytes: int | None
    free_bytes: int | None
    fits: bool | None


@dataclass(frozen=True)
class _Need:
    """The bytes that a model needs on a device: those for all of it, and those without which it does not load."""

    device: Device
    engine: str
    needed_bytes: int | None
    least_bytes: int | None


class MemoryFitEstimator:
    """Compares the memory that models need with the memory of the ready devices."""

    def __init__(self, text: Text, directory: DeviceDirectory, pool: WorkerPool) -> None:
        self._text = text
        self._directory = directory
        self._pool = pool

    def fits_of(self, entry: Entry) -> list[DeviceFit]:
        """Return the fit of a model for each ready device that has an engine for it."""
        return self._fits(self._needs(entry, self._ready_devices()))

    def list_models(self, catalogue: Catalogue) -> list[Model]:
        """Return all models of the catalogue, those that are ready with `details.fits`."""
        return self._with_fits(self._read_models(catalogue, self._ready_devices()))

    async def read_models(self, catalogue: Catalogue) -> list[Model]:
        """Return `list_models`, with the models' files read in a thread."""
        return self._with_fits(await asyncio.to_thread(self._read_models, catalogue, self._ready_devices()))

    def _ready_devices(self) -> list[Device]:
        return [device for device in self._directory.known_devices() if device.state == "ready"]

    def _read_models(self, catalogue: Catalogue, devices: list[Device]) -> list[tuple[Model, list[_Need]]]:
        """Return all models with what they need. It reads files: call it in a thread."""
        pairs = catalogue.models_with_entries()
        return [(model, self._needs(entry, devices) if model.state == "ready" else []) for model, entry in pairs]

    def _needs(self, entry: Entry, devices: list[Device]) -> list[_Need]:
        """Return what a model needs on each of these devices that has an engine for it."""
        needs = []
        for device in devices:
            engine = next((name for name in entry.engines if name in device.engines), None)
            if engine is None:
                continue
            try:
                path = entry.path_for(engine)
                needed, least = bounded_read(path, partial(self._sizes, engine, str(path), device))
            except (TouchstoneError, OSError):
                needed = least = None
            needs.append(_Need(device, engine, needed, least))
        return needs

    def _sizes(self, engine: str, path: str, device: Device) -> tuple[int | None, int | None]:
        needed = load_engine(engine).estimate_bytes(path, self._text.context_tokens, self._text.slots)
        return needed, least_bytes(engine, path, device, needed)

    def _fits(self, needs: list[_Need]) -> list[DeviceFit]:
        fits = []
        for need in needs:
            free = self._pool.available_bytes(need.device.hardware_id or need.device.id, need.device)
            fit = None if need.least_bytes is None or free is None else need.least_bytes <= free
            fits.append(DeviceFit(need.device.id, need.engine, need.needed_bytes, free, fit))
        return fits

    def describe(self, entry: Entry) -> str:
        """Return the fits as a sentence, or what to do if no device runs the model; empty if both are unknown."""
        fits = self.fits_of(entry)
        ready = self._ready_devices()
        if ready and entry.engines and not fits:
            convert = (
                f" Or convert it: `{command(f'models convert {entry.id}')}`." if is_checkpoint(entry.target) else ""
            )
            install = install_hint(entry.engines, ready[0].backend, ready[0].lacks)
            return f"No device here runs it as it is. {install}{convert}"
        return _sentence(fits)

    def _with_fits(self, models: list[tuple[Model, list[_Need]]]) -> list[Model]:
        return [
            replace(model, details=model.details | {"fits": [asdict(fit) for fit in self._fits(needs)]})
            if model.state == "ready"
            else model
            for model, needs in models
        ]


def _sentence(fits: Sequence[DeviceFit]) -> str:
    clauses = []
    for fit in fits:
        if fit.needed_bytes is not None and fit.free_bytes is not None and fit.fits is not None:
            verb = "fits" if fit.fits else "does not fit"
            sizes = f"{fit.needed_bytes / 1e6:.0f} of {fit.free_bytes / 1e6:.0f} MB"
            clauses.append(f"{verb} {fit.device} ({fit.engine}, {sizes})")
    return f"It {', '.join(clauses)}." if clauses else ""
