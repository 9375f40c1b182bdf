"""The answers of `GET /api/health` and `GET /api/devices`, from memory: neither waits for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import get_args

from backend import __version__
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.data_dir import DataDir
from backend.common.system.resources import memory_free_bytes, process_cpu_s
from backend.common.types import Device, DeviceState, Hardware, JsonObject, MissingDevice
from backend.jobs.registry import JobRegistry
from backend.models import Catalogue, Entry
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.probing.missing_devices import missing_devices, no_ready_device
from backend.scheduling.ranking import RankingQuery, by_preference
from backend.scheduling.worker_pool import LoadedModel, WorkerPool

HealthProblem = dict[str, str | None]  # {subject, code, detail, remedy}


class HealthReporter:
    """Reports the state of the service and of its devices."""

    def __init__(
        self,
        settings: Settings,
        data_dir: DataDir,
        catalogue: Catalogue,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        *,
        uptime_s: Callable[[], float],
        disk_free_bytes: Callable[[], int | None],
        shares_worker: Callable[[str], bool],
        problem_sources: Sequence[Callable[[], list[HealthProblem]]],
    ) -> None:
        """`shares_worker` returns whether a job of a model would share its worker with other jobs.

        `problem_sources` return problems of other services that do not degrade the status.
        """
        self._settings = settings
        self._data_dir = data_dir
        self._catalogue = catalogue
        self._directory = directory
        self._pool = pool
        self._registry = registry
        self._uptime_s = uptime_s
        self._disk_free_bytes = disk_free_bytes
        self._shares_worker = shares_worker
        self._problem_sources = problem_sources

    def health(self) -> JsonObject:
        """Return the answer of `GET /api/health`."""
        devices, registry = self._directory.known_devices(), self._registry
        failures = self._failures(devices)
        status = "degraded" if failures else "ok"
        return {
            "status": status if self._directory.probes.started else "starting",
            "version": __version__,
            "id": self._data_dir.id,
            "uptime_s": self._uptime_s(),
            "devices": {state: sum(device.state == state for device in devices) for state in get_args(DeviceState)},
            "jobs": {"queued": registry.count("queued"), "running": registry.count("loading", "running")},
            "problems": [*failures, *self._warnings()],
        }

    def device_list(self) -> JsonObject:
        """Return the answer of `GET /api/devices`."""
        return self._device_list(self._catalogue.entries())

    async def read_device_list(self) -> JsonObject:
        """Return `device_list`, with the model folders read in a thread."""
        return self._device_list(await asyncio.to_thread(self._catalogue.entries))

    def _device_list(self, entries: Mapping[str, Entry]) -> JsonObject:
        devices, hardware = self._directory.known_devices(), list(self._directory.hardware())
        choices = {entry.id: self._auto_choice(entry) for entry in entries.values()}
        default = choices.get(self._settings.default_models.text or "") or self._directory.resolve("auto")
        return {
            "devices": [_with_free_memory(asdict(device)) for device in devices],
            "hardware": [asdict(item) for item in hardware],
            "missing": [asdict(item) for item in self._missing(hardware, devices)],
            "default": default.resolved if by_preference(devices, "text") else None,
            "default_reason": default.reason,
            "auto": {model: {"device": choice.resolved, "reason": choice.reason} for model, choice in choices.items()},
            "probing": self._directory.probes.probing,
            "loaded": [_loaded_view(loaded) for loaded in self._pool.loaded_models()],
        }

    def _missing(self, hardware: Sequence[Hardware], devices: Sequence[Device]) -> list[MissingDevice]:
        """Return why cards have no ready device; nothing before the first probes ended."""
        return missing_devices(hardware, devices) if self._directory.probes.started else []

    def _auto_choice(self, entry: Entry) -> Resolution:
        """Return the device that `auto` would choose for a model now."""
        query = RankingQuery(entry.id, entry.engines, self._shares_worker(entry.id))
        return self._directory.resolve("auto", entry.task, None, query)

    def _failures(self, devices: Sequence[Device]) -> list[HealthProblem]:
        """Return the problems that make the service `degraded`: broken devices, no ready device, a failing disk."""
        failures: list[HealthProblem] = [
            {"subject": device.id, "code": device.state, "detail": device.reason, "remedy": device.remedy}
            for device in devices
            if device.state in ("broken", "quarantined")
        ]
        is_known = self._directory.probes.started
        if is_known and not any(device.state in ("ready", "probing") for device in devices):
            detail, remedy = no_ready_device(devices, self._directory.probes.table.runtime_problems)
            remedy = remedy or f"Run `{command('doctor')}`, which checks the installation."
            failures.append(_problem("devices", "no_device", detail, remedy))
        if error := self._registry.storage_error:
            failures.append(_problem("storage", error.code, error.detail, error.remedy))
        return failures

    def _warnings(self) -> list[HealthProblem]:
        """Return the problems with which the service still works."""
        warnings = [*self._storage_warnings()]
        warnings += [
            _problem(f"runtime:{name}", "runtime_broken", trouble.detail, trouble.remedy)
            for name, trouble in self._directory.probes.table.runtime_problems.items()
        ]
        for source in self._problem_sources:
            warnings += source()
        # A crashed worker is reported, but its device works: only the device's own state degrades the service.
        crashes = self._directory.quarantine.problems()
        return warnings + [_problem(device, error.code, error.detail, error.remedy) for device, error in crashes]

    def _storage_warnings(self) -> list[HealthProblem]:
        warnings = []
        if backup := self._registry.corrupt_backup:
            detail = f"The job history was damaged. It was moved to {backup}, with the files of its jobs."
            remedy = "Keep or delete that folder. Send jobs that were queued in it again; a new history is in use."
            warnings.append(_problem("storage", "history_damaged", detail, remedy))
        free, reserve = self._disk_free_bytes(), self._settings.files.keep_free_bytes
        if free is not None and free < reserve:
            detail = (
                f"The disk of {self._settings.data_dir} has {free / 1e6:.0f} MB free, less than {reserve / 1e6:.0f} MB."
            )
            remedy = (
                "Free some space or delete old jobs: a full disk accepts no new jobs. files.keep_free_bytes sets this "
                "limit."
            )
            warnings.append(_problem("storage", "disk_low", detail, remedy))
        for folder in self._catalogue.silent_folders():
            detail = f"The model folder {folder} does not answer: its disk or network mount does not respond."
            remedy = f"Check that `ls {folder}` returns, and mount it again; or remove it from `model_folders`."
            warnings.append(_problem("storage", "model_folder_silent", detail, remedy))
        return warnings


def _problem(subject: str, code: str, detail: str, remedy: str) -> HealthProblem:
    return {"subject": subject, "code": code, "detail": detail, "remedy": remedy}


def _loaded_view(loaded: LoadedModel) -> JsonObject:
    """Return a loaded model as JSON. `jobs` counts its running jobs, `cpu_s` is the processor time of its worker."""
    key, pid = loaded.worker.key, loaded.worker.pid
    return {
        **{"device": key.device, "model": key.model, "engine": key.engine, "runtime": key.runtime},
        **{"memory_bytes": loaded.worker.resident_bytes, "jobs": loaded.users, "pid": pid},
        "cpu_s": process_cpu_s(pid) if pid else None,
    }


def _with_free_memory(device: JsonObject) -> JsonObject:
    """Set the free memory of devices that use the machine's own memory to what is free now."""
    return device | {"memory_free_bytes": memory_free_bytes()} if device["kind"] in ("cpu", "integrated") else device
