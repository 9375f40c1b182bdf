"""Starts benchmarks while the machine is idle, where a measurement helps `auto` to choose.

It measures a model that was used, if it can run in several ways and one of them has no valid measurement, or if its
measurement is older than an update. It does not run on battery or while other programs are busy. The first job that
arrives cancels it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection

from backend import __version__
from backend.common.config.settings.schema import Measuring
from backend.common.errors import TouchstoneError
from backend.common.system import power
from backend.common.system.resources import usable_threads
from backend.common.types import TERMINAL
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import JobRegistry
from backend.manager.benchmarks.candidates import TASKS, Candidate, find_candidates
from backend.manager.benchmarks.request import BenchmarkRequest
from backend.manager.benchmarks.service import BenchmarkService
from backend.manager.benchmarks.speeds import MeasuredSpeeds
from backend.models import Catalogue
from backend.scheduling.device_directory import DeviceDirectory

log = logging.getLogger(__name__)
LOOK_S, WATCH_S = 10.0, 0.2
RUNS = 3  # about half a minute for two targets of a small model
TRIES = 3  # after that many failed or cancelled benchmarks a model is skipped until the next start
BUSY = 0.5  # load average per processor above which the machine counts as busy
CALLER = "idle"


class IdleTrigger:
    """Watches for idle time and measures one model at a time."""

    def __init__(
        self,
        rules: Measuring,
        catalogue: Catalogue,
        directory: DeviceDirectory,
        registry: JobRegistry,
        benchmarks: BenchmarkService,
        speeds: MeasuredSpeeds,
    ) -> None:
        self._rules = rules
        self._catalogue = catalogue
        self._directory = directory
        self._registry = registry
        self._benchmarks = benchmarks
        self._speeds = speeds

    async def watch(self) -> None:
        """Check regularly whether a benchmark is due, and run it. Returns at once if the settings disable it.

        A refused benchmark is logged; a model has at most `TRIES` retries until the next start.
        """
        if not self._rules.when_idle:
            return
        tries: dict[str, int] = {}
        last_used_s = time.monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, self._rules.idle_s))
            if self._registry.count("queued", "loading", "running") or self._directory.probes.probing:
                last_used_s = time.monotonic()
            if time.monotonic() - last_used_s < self._rules.idle_s or not await is_machine_idle():
                continue
            model = await self.due_model([name for name, count in tries.items() if count >= TRIES])
            if model is None:
                continue
            tries[model] = tries.get(model, 0) + 1
            try:
                job = await self._benchmarks.submit(BenchmarkRequest(models=[model], runs=RUNS), CALLER, CALLER)
            except TouchstoneError as error:
                log.warning(
                    "idle benchmark refused", extra={"model": model, "code": error.code, "detail": error.detail}
                )
                continue
            await self._yield_to_others(job)
            last_used_s = time.monotonic()

    async def due_model(self, skipped: Collection[str]) -> str | None:
        """Return a model to measure now, None if no benchmark is due. Models in `skipped` are not considered.

        A used model is due if a measurement of it is older than an update, or if it can run in several ways of which
        one has no valid measurement.
        """
        page = await self._registry.views([], None, 50, None)
        used = [job["model"] for job in page["jobs"] if job["task"] in TASKS and job["status"] in TERMINAL]
        entries = self._catalogue.entries()
        for model in dict.fromkeys(used):
            if model in skipped or model not in entries:
                continue
            candidates, _ = find_candidates(self._directory, [entries[model]], (), ())
            fresh = [self._is_measured(candidate) for candidate in candidates]
            measured = {measurement.subject for measurement in self._benchmarks.history.all(model=model)}
            outdated = any(
                candidate.subject in measured and not is_fresh
                for candidate, is_fresh in zip(candidates, fresh, strict=True)
            )
            if outdated or (len(candidates) > 1 and not all(fresh)):
                return str(model)
        return None

    def _is_measured(self, candidate: Candidate) -> bool:
        """Return whether this version of Touchstone measured it as it is now, on an idle machine."""
        valid = self._speeds.valid(candidate.device)
        measurement = next((each for each in valid if each.subject == candidate.subject), None)
        return measurement is not None and not measurement.busy and measurement.touchstone == __version__

    async def _yield_to_others(self, job: LiveJob) -> None:
        """Wait for the end of the benchmark; cancel it as soon as another job is active."""
        while not job.ended.is_set():
            if any(other.active and other is not job for other in self._registry.live.values()):
                job.cancelling.set()
                await job.ended.wait()
            await asyncio.sleep(WATCH_S)


async def is_machine_idle() -> bool:
    """Return whether a benchmark disturbs no program: not on battery, as far as is known, and a low load average."""
    if await asyncio.to_thread(power.on_battery):
        return False
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] / usable_threads() <= BUSY
