"""Which of the devices here a model fits, told before anything is loaded, by what loading itself goes by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backend.common.errors import TouchstoneError
from backend.common.formats.safetensors import is_checkpoint
from backend.common.types import Model
from backend.engines import load_engine
from backend.models import Entry
from backend.runtimes.recipes import bringing
from backend.scheduling.worker_pool import least_bytes

if TYPE_CHECKING:
    from backend.manager.core import Core


def memory_fit(manager: Core, entry: Entry) -> list[dict[str, Any]]:
    """For each ready device with an engine of the model: `{device, engine, needed_bytes, free_bytes, fits}`.

    `free_bytes` is what could be had now, with idle models unloaded; `fits` is null where either number is not known.
    """
    found = []
    text = manager.settings.text
    for device in manager.known_devices():
        engine = next((name for name in entry.engines if name in device.engines), None)
        if device.state != "ready" or engine is None:
            continue
        try:
            path = str(entry.path_for(engine))
            needed = load_engine(engine).estimate_bytes(path, text.context_tokens, text.slots)
            least = least_bytes(engine, path, device, needed)
        except (TouchstoneError, OSError):
            needed = least = None
        free = manager.pool.available_bytes(device.hardware_id or device.id, device)
        fit = None if least is None or free is None else least <= free
        numbers = {"needed_bytes": needed, "free_bytes": free}
        found.append({"device": device.id, "engine": engine, **numbers, "fits": fit})
    return found


def list_models(manager: Core) -> list[Model]:
    """All models as the catalogue shows them, those that are ready with `details.fits`."""
    shown = [(entry, manager.catalogue.model(entry)) for entry in manager.catalogue.entries().values()]
    return [
        replace(model, details=model.details | {"fits": memory_fit(manager, entry)})
        if model.state == "ready"
        else model
        for entry, model in shown
    ]


def describe_fit(manager: Core, entry: Entry) -> str:
    """The same as a sentence, or what would let the model run here; empty where nothing is known."""
    found, words = memory_fit(manager, entry), []
    ready = [device for device in manager.known_devices() if device.state == "ready"]
    if ready and entry.engines and not found:
        convert = f" Or convert it: `models convert {entry.id}`." if is_checkpoint(entry.target) else ""
        brought = bringing(entry.engines, ready[0].backend, ready[0].lacks)
        return f"No device here runs it as it is. {brought}{convert}"
    for one in found:
        if one["fits"] is not None:
            verb = "fits" if one["fits"] else "does not fit"
            sizes = f"{one['needed_bytes'] / 1e6:.0f} of {one['free_bytes'] / 1e6:.0f} MB"
            words.append(f"{verb} {one['device']} ({one['engine']}, {sizes})")
    return f"It {', '.join(words)}." if words else ""
