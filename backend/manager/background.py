"""What the manager does by itself from time to time: tell that it lives, prove again after a sleep, forget, preload."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from backend.common import compile_cache
from backend.common.data_dir import BEAT_S
from backend.common.errors import TouchstoneError
from backend.common.system.suspend import ClockJumpDetector, SuspendDetector
from backend.common.timestamps import timestamp
from backend.jobs.live_job import LiveJob
from backend.jobs.store.sqlite import JobStore
from backend.manager import model_jobs

if TYPE_CHECKING:
    from backend.manager.core import Core

log = logging.getLogger(__name__)
SWEEP_S = 60.0
CACHE_KEEP_S = 90 * 86400.0  # since a model was loaded with it last


async def beat(manager: Core, sleep: SuspendDetector) -> None:
    """Says in the data folder that this server lives. After the machine has slept, the devices are proved again."""
    while True:
        manager.data_dir.heartbeat()
        if slept_s := sleep.slept_s():
            log.warning("the machine slept; devices are proved again", extra={"seconds": round(slept_s)})
            manager.refresh()
        await asyncio.sleep(BEAT_S)


async def sweep(manager: Core, store: JobStore, jumps: ClockJumpDetector | None = None) -> None:
    """Forgets what is older or more than the settings keep. A clock that was set forward makes nothing older."""
    storage, jumps = manager.settings.storage, jumps or ClockJumpDetector()
    failed: TouchstoneError | None = None
    while True:
        with contextlib.suppress(OSError):
            manager.disk_free_bytes = shutil.disk_usage(storage.data_dir).free
        try:
            kept = timedelta(days=storage.keep_days, seconds=max(0.0, jumps.jumped_s()))
            gone = await store.sweep(timestamp(kept), storage.keep_bytes)
        except TouchstoneError as error:
            manager.registry.storage_error = failed = error
        else:
            if failed is not None and manager.registry.storage_error is failed:
                manager.registry.storage_error = None
            if gone:
                log.info("old jobs forgotten", extra={"jobs": gone})
        await asyncio.sleep(SWEEP_S)


async def sweep_files(manager: Core) -> None:
    """Forgets files that callers sent, once their time is over and no job needs them, and old caches."""
    jumps = ClockJumpDetector()
    while True:
        needed = named_files(manager.registry.live.values())
        now_s = time.time() - max(0.0, jumps.jumped_s())
        if gone := await asyncio.to_thread(manager.uploads.sweep, needed, now_s):
            log.info("old files of callers forgotten", extra={"files": gone})
        await asyncio.to_thread(compile_cache.sweep, manager.settings.data_dir, now_s - CACHE_KEEP_S)
        await asyncio.sleep(SWEEP_S)


def named_files(jobs: Iterable[LiveJob]) -> set[str]:
    """The ids of the files that jobs name which have not ended."""
    return {file_id for job in jobs if job.active for file_id in job.input_files()}


async def preload(manager: Core) -> None:
    """Loads what the settings want loaded from the start; a failure stands in the history like any other."""
    await manager.probes.wait_until_idle()
    for model in manager.settings.preload:
        try:
            job = await model_jobs.load(manager, model, "auto", None, "preload")
        except TouchstoneError as error:
            log.error("preload failed", extra={"model": model, "code": error.code, "detail": error.detail})
        else:
            await job.ended.wait()
