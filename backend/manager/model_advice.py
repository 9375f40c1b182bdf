"""Advice on models that are not here yet: the recommended one, and what a search finds, with what fits this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from backend.child.handle import Spawn
from backend.common.system import resources
from backend.common.types import Device, JsonObject, Model
from backend.engines import engines
from backend.models import Catalogue
from backend.models.recommendation import Recommendation, recommend
from backend.models.search import DEFAULT_LIMIT, search
from backend.models.size_fit import MemoryPlace, fits_of
from backend.scheduling.device_directory import DeviceDirectory

_KEPT_S = 60.0  # a repeated search is answered without a request: the hub limits their number
_KEPT_SEARCHES = 32


class ModelAdvisor:
    """Compares models that can be downloaded with the memory of the ready devices."""

    def __init__(self, catalogue: Catalogue, directory: DeviceDirectory, spawn: Spawn) -> None:
        self._catalogue = catalogue
        self._directory = directory
        self._spawn = spawn
        self._one_search = asyncio.Semaphore(2)
        self._kept: dict[tuple[str, str | None, int], tuple[float, list[JsonObject]]] = {}

    def recommended(self, models: Sequence[Model]) -> JsonObject | None:
        """Return the recommended text model as the API shows it. `models`: all models with their states."""
        found = recommend(self._catalogue.shipped_entries(), memory_places(self._directory.known_devices()))
        return None if found is None else recommendation_data(found, models)

    async def search(self, query: str, task: str | None = None, limit: int = DEFAULT_LIMIT) -> list[JsonObject]:
        """Return what a search on Hugging Face finds. Raises Validation, SearchUnavailable."""
        key = (" ".join(query.split()).lower(), task, limit)
        async with self._one_search:
            now_s = time.monotonic()
            self._kept = {kept: found for kept, found in self._kept.items() if now_s - found[0] < _KEPT_S}
            if key not in self._kept:
                results = await search(query, task, limit, self._spawn, self._catalogue.environ)
                self._kept = dict([*self._kept.items(), (key, (now_s, results))][-_KEPT_SEARCHES:])
            results = self._kept[key][1]
        return with_fits(results, self._directory.known_devices())


def memory_places(devices: Sequence[Device], suffix: str = ".gguf") -> list[MemoryPlace]:
    """Return the ready devices with an engine for files with a suffix. Without one, the system memory counts."""
    readers = {name for name, engine in engines().items() if suffix in engine.suffixes}
    able = [device for device in devices if device.state == "ready" and readers & set(device.engines)]
    places = [
        MemoryPlace(device.id, device.memory_bytes, device.kind == "gpu")
        for device in able
        if device.memory_bytes and device.kind in ("gpu", "cpu")
    ]
    system = resources.memory_bytes()
    return places or ([MemoryPlace("cpu", system, is_card=False)] if system else [])


def recommendation_data(found: Recommendation, models: Sequence[Model]) -> JsonObject:
    """Return a recommendation as the API shows it. `offer`: no text model but the test model is on this machine."""
    states = {model.id: model.state for model in models}
    usable = [model for model in models if model.task == found.entry.task and model.state in ("ready", "downloading")]
    return {
        "model": found.entry.id,
        "name": found.entry.name,
        "state": states.get(found.entry.id),
        "bytes": found.bytes,
        "download_s": found.download_s,
        "licence": found.entry.licence,
        "memory_class": found.memory_class,
        "reason": found.reason,
        "fits": None if found.fit is None else asdict(found.fit),
        "offer": not [model for model in usable if not model.details.get("test_model")],
    }


def with_fits(results: Sequence[Mapping[str, object]], devices: Sequence[Device]) -> list[JsonObject]:
    """Return search results whose files have `fits`."""
    places: dict[str, list[MemoryPlace]] = {}

    def described(file: JsonObject) -> JsonObject:
        suffix = f".{file['name'].rpartition('.')[2].lower()}"
        if suffix not in places:
            places[suffix] = memory_places(devices, suffix)
        return {**file, "fits": [asdict(fit) for fit in fits_of(file["bytes"], places[suffix])]}

    return [{**found, "files": [described(file) for file in _files(found)]} for found in results]


def _files(found: Mapping[str, object]) -> list[JsonObject]:
    files: list[JsonObject] = found["files"]  # type: ignore[assignment]
    return files
