"""Measures by itself what `auto` could choose better by, while nobody needs the machine.

A model that is used, where there is a choice: two or more ways of running it, of which one was not measured as it is
now; and what was measured before an update. Never on battery, nor while other programs compute; the first job that
comes ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

from backend import __version__
from backend.common.errors import TouchstoneError
from backend.common.system import power
from backend.common.system.resources import usable_threads
from backend.common.types import TERMINAL
from backend.jobs.live_job import LiveJob
from backend.manager.benchmarks import Asked, BenchmarkService
from backend.manager.benchmarks.candidates import TASKS, Candidate, candidates

if TYPE_CHECKING:
    from backend.manager.core import Core

log = logging.getLogger(__name__)
LOOK_S, WATCH_S = 10.0, 0.2
RUNS = 3  # about half a minute for two ways of a small model
TRIES = 3  # what failed or was broken off that often is left until the next start
BUSY = 0.5  # programs that want a processor, for each that there is
CALLER = "idle"


async def watch(manager: Core, measuring: BenchmarkService) -> None:
    """Looks now and then, and measures one model at a time."""
    rules = manager.settings.measuring
    if not rules.when_idle:
        return
    tries: dict[str, int] = {}
    last_used_s = time.monotonic()
    while True:
        await asyncio.sleep(min(LOOK_S, rules.idle_s))
        if manager.registry.count("queued", "loading", "running") or manager.probes.probing:
            last_used_s = time.monotonic()
        if time.monotonic() - last_used_s < rules.idle_s or not await calm():
            continue
        model = await due(manager, measuring, [name for name, count in tries.items() if count >= TRIES])
        if model is None:
            continue
        tries[model] = tries.get(model, 0) + 1
        try:
            job = await measuring.submit(Asked(models=[model], runs=RUNS), CALLER, CALLER)
        except TouchstoneError as error:
            log.warning("nothing is measured", extra={"model": model, "code": error.code, "detail": error.detail})
            continue
        await _give_way(manager, job)
        last_used_s = time.monotonic()


async def calm() -> bool:
    """Whether a measurement would disturb nobody: mains power, as far as is known, and processors that rest."""
    if await asyncio.to_thread(power.on_battery):
        return False
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] / usable_threads() <= BUSY


async def due(manager: Core, measuring: BenchmarkService, given_up: list[str]) -> str | None:
    """A used model of which a measurement is of before an update, or with ways to choose from that are not measured."""
    page = await manager.registry.views([], None, 50, None)
    used = [job["model"] for job in page["jobs"] if job["task"] in TASKS and job["status"] in TERMINAL]
    entries = manager.catalogue.entries()
    for model in dict.fromkeys(used):
        if model in given_up or model not in entries:
            continue
        ways, _ = candidates(manager, [entries[model]], (), ())
        fresh = [_fresh(measuring, way) for way in ways]
        known = {one.subject for one in measuring.history.all(model=model)}
        outdated = any(_subject(way) in known and not new for way, new in zip(ways, fresh, strict=True))
        if outdated or (len(ways) > 1 and not all(fresh)):
            return str(model)
    return None


def _subject(way: Candidate) -> tuple[str, str, str, str]:
    return way.device.id, way.device.name, way.engine, way.entry.id


def _fresh(measuring: BenchmarkService, way: Candidate) -> bool:
    """Whether it was measured as it is now, by this version, on a calm machine."""
    found = next((one for one in measuring.valid(way.device) if one.subject == _subject(way)), None)
    return found is not None and not found.busy and found.touchstone == __version__


async def _give_way(manager: Core, job: LiveJob) -> None:
    """Waits for the job's end, and ends it as soon as there is another."""
    while not job.ended.is_set():
        if any(other.active and other is not job for other in manager.registry.live.values()):
            job.cancelling.set()
            await job.ended.wait()
        await asyncio.sleep(WATCH_S)
