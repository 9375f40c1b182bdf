"""Estimates which devices a model fits before it is loaded, by the same numbers that loading itself uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from backend.common.commands import command
from backend.common.config.settings.schema import Text
from backend.common.errors import TouchstoneError
from backend.common.formats.safetensors import is_checkpoint
from backend.common.types import Model
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


class MemoryFitEstimator:
    """Compares the memory that models need with the memory of the ready devices."""

    def __init__(self, text: Text, directory: DeviceDirectory, pool: WorkerPool) -> None:
        self._text = text
        self._directory = directory
        self._pool = pool

    def fits_of(self, entry: Entry) -> list[DeviceFit]:
        """Return the fit of a model for each ready device that has an engine for it."""
        fits = []
        for device in self._directory.known_devices():
            engine = next((name for name in entry.engines if name in device.engines), None)
            if device.state != "ready" or engine is None:
                continue
            try:
                path = str(entry.path_for(engine))
                needed = load_engine(engine).estimate_bytes(path, self._text.context_tokens, self._text.slots)
                least = least_bytes(engine, path, device, needed)
            except (TouchstoneError, OSError):
                needed = least = None
            free = self._pool.available_bytes(device.hardware_id or device.id, device)
            fit = None if least is None or free is None else least <= free
            fits.append(DeviceFit(device.id, engine, needed, free, fit))
        return fits

    def list_models(self, catalogue: Catalogue) -> list[Model]:
        """Return all models of the catalogue, those that are ready with `details.fits`."""
        return [self._with_fits(catalogue.model(entry), entry) for entry in catalogue.entries().values()]

    def describe(self, entry: Entry) -> str:
        """Return the fits as a sentence, or what to do if no device runs the model; empty if both are unknown."""
        fits = self.fits_of(entry)
        ready = [device for device in self._directory.known_devices() if device.state == "ready"]
        if ready and entry.engines and not fits:
            convert = (
                f" Or convert it: `{command(f'models convert {entry.id}')}`." if is_checkpoint(entry.target) else ""
            )
            install = install_hint(entry.engines, ready[0].backend, ready[0].lacks)
            return f"No device here runs it as it is. {install}{convert}"
        return _sentence(fits)

    def _with_fits(self, model: Model, entry: Entry) -> Model:
        if model.state != "ready":
            return model
        return replace(model, details=model.details | {"fits": [asdict(fit) for fit in self.fits_of(entry)]})


def _sentence(fits: Sequence[DeviceFit]) -> str:
    clauses = []
    for fit in fits:
        if fit.needed_bytes is not None and fit.free_bytes is not None and fit.fits is not None:
            verb = "fits" if fit.fits else "does not fit"
            sizes = f"{fit.needed_bytes / 1e6:.0f} of {fit.free_bytes / 1e6:.0f} MB"
            clauses.append(f"{verb} {fit.device} ({fit.engine}, {sizes})")
    return f"It {', '.join(clauses)}." if clauses else ""
