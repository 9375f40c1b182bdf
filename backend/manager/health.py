"""What health and the device list say, from memory alone: neither ever waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from backend import __version__
from backend.common.system.resources import memory_free_bytes, process_cpu_s
from backend.common.types import DeviceState
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.ranking import RankingQuery, by_preference

if TYPE_CHECKING:
    from backend.manager.core import Core
    from backend.models import Entry
    from backend.scheduling.worker_pool import LoadedModel


def health(manager: Core) -> dict[str, Any]:
    """The answer of `GET /api/health`."""
    devices = manager.known_devices()
    problems: list[dict[str, str | None]] = [
        {"subject": device.id, "code": device.state, "detail": device.reason, "remedy": device.remedy}
        for device in devices
        if device.state in ("broken", "quarantined")
    ]
    if trouble := manager.registry.storage_error:
        problems.append(
            {"subject": "storage", "code": trouble.code, "detail": trouble.detail, "remedy": trouble.remedy}
        )
    degraded = bool(problems)
    if folder := manager.registry.corrupt_backup:  # no failure: the service works with a new one
        detail = f"The job history was damaged and lies, with the files of its jobs, in {folder}; a new one was begun."
        remedy = "Keep or delete that folder; jobs that waited in it have to be sent again."
        problems.append({"subject": "storage", "code": "history_damaged", "detail": detail, "remedy": remedy})
    free, kept = manager.disk_free_bytes, manager.settings.files.keep_free_bytes
    if free is not None and free < kept:
        detail = f"The disk of {manager.settings.data_dir} has {free / 1e6:.0f} MB free, less than {kept / 1e6:.0f} MB."
        remedy = (
            "Free some space, or delete old jobs: a full disk takes no new ones. files.keep_free_bytes sets the mark."
        )
        problems.append({"subject": "storage", "code": "disk_low", "detail": detail, "remedy": remedy})
    problems += [
        {"subject": f"runtime:{name}", "code": "runtime_broken", "detail": trouble.detail, "remedy": trouble.remedy}
        for name, trouble in manager.probes.table.troubles.items()
    ]
    problems += manager.runtime_service.problems()
    problems += manager.benchmarks.problems()
    # A worker's death is worth a line, but the device works: only its own state degrades the service.
    problems += [
        {"subject": device, "code": error.code, "detail": error.detail, "remedy": error.remedy}
        for (device, _), error in manager.quarantine.last.items()
    ]
    return {
        "status": "starting" if not manager.probes.started else "degraded" if degraded else "ok",
        "version": __version__,
        "id": manager.data_dir.id,
        "uptime_s": manager.uptime_s,
        "devices": {state: sum(device.state == state for device in devices) for state in get_args(DeviceState)},
        "jobs": {"queued": manager.registry.count("queued"), "running": manager.registry.count("loading", "running")},
        "problems": problems,
    }


def device_list(manager: Core) -> dict[str, Any]:
    """The answer of `GET /api/devices`."""
    devices = manager.known_devices()
    choices = {entry.id: choice_for(manager, entry) for entry in manager.catalogue.entries().values()}
    choice = choices.get(manager.settings.default_models.text or "") or manager.resolve("auto")
    return {
        "devices": [_with_free_memory(asdict(device)) for device in devices],
        "hardware": [asdict(item) for item in manager.hardware()],
        "default": choice.resolved if by_preference(devices, "text") else None,
        "default_reason": choice.reason,
        "auto": {model: {"device": one.resolved, "reason": one.reason} for model, one in choices.items()},
        "probing": manager.probes.probing,
        "loaded": [_loaded(held) for held in manager.pool.loaded_models()],
    }


def choice_for(manager: Core, entry: Entry) -> Resolution:
    """What `auto` would take for a model now."""
    return manager.resolve(
        "auto", entry.task, None, RankingQuery(entry.id, entry.engines, manager.runs_beside_others(entry.id))
    )


def _loaded(held: LoadedModel) -> dict[str, Any]:
    """A model that a worker holds now; `jobs` are those that it computes, `cpu_s` the processor time it has used."""
    key, pid = held.worker.key, held.worker.pid
    return {
        **{"device": key.device, "model": key.model, "engine": key.engine, "runtime": key.runtime},
        **{"memory_bytes": held.worker.resident_bytes, "jobs": held.users, "pid": pid},
        "cpu_s": process_cpu_s(pid) if pid else None,
    }


def _with_free_memory(device: dict[str, Any]) -> dict[str, Any]:
    """What works in the machine's own memory has as much of it free as the machine has now."""
    return device | {"memory_free_bytes": memory_free_bytes()} if device["kind"] in ("cpu", "integrated") else device
