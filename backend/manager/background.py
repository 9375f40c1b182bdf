"""Housekeeping: the heartbeat, proofs after a suspend, expiry of jobs and files, and models to preload."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any

from backend.common import compile_cache
from backend.common.bounded_reads import bounded_read
from backend.common.config.settings import Settings
from backend.common.data_dir import BEAT_S, DataDir
from backend.common.errors import TouchstoneError
from backend.common.system.suspend import ClockJumpDetector, SuspendDetector
from backend.common.timestamps import timestamp
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import JobRegistry
from backend.jobs.store.sqlite import JobStore
from backend.jobs.uploads import UploadStore
from backend.manager.model_jobs import ModelJobs
from backend.scheduling.device_directory import DeviceDirectory

log = logging.getLogger(__name__)
SWEEP_S = 60.0
CACHE_KEEP_S = 90 * 86400.0  # after the last load that used it


class Housekeeping:
    """Background loops of the manager. Each runs until it is cancelled."""

    def __init__(
        self,
        settings: Settings,
        data_dir: DataDir,
        directory: DeviceDirectory,
        registry: JobRegistry,
        uploads: UploadStore,
        store: JobStore,
        model_jobs: ModelJobs,
        suspend: SuspendDetector,
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._directory = directory
        self._registry = registry
        self._uploads = uploads
        self._store = store
        self._model_jobs = model_jobs
        self._suspend = suspend
        self.disk_free_bytes: int | None = None  # of the data folder's disk, at the last sweep

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return the loops to run in the background."""
        return [self.heartbeat(), self.expire_jobs(), self.expire_files(), self.preload()]

    async def heartbeat(self) -> None:
        """Write the heartbeat of this server to the data folder. Log a suspend and prove the devices again."""
        while True:
            await asyncio.to_thread(self._data_dir.heartbeat)
            if slept_s := self._suspend.slept_s():
                log.warning("the machine was suspended; probing all devices", extra={"seconds": round(slept_s)})
                self._directory.refresh()
            await asyncio.sleep(BEAT_S)

    async def expire_jobs(self, jumps: ClockJumpDetector | None = None) -> None:
        """Delete jobs that are older, or take more space, than the settings allow.

        `jumps` is optional. It corrects for a clock that is set forward, which would make jobs look older.
        """
        storage, jumps = self._settings.storage, jumps or ClockJumpDetector()
        failure: TouchstoneError | None = None
        while True:
            with contextlib.suppress(OSError):
                self.disk_free_bytes = await asyncio.to_thread(
                    bounded_read, storage.data_dir, lambda: shutil.disk_usage(storage.data_dir).free
                )
            try:
                max_age = timedelta(days=storage.keep_days, seconds=max(0.0, jumps.jumped_s()))
                deleted = await self._store.sweep(timestamp(max_age), storage.keep_bytes)
            except TouchstoneError as error:
                self._registry.storage_error = failure = error
            else:
                if failure is not None and self._registry.storage_error is failure:
                    self._registry.storage_error = None
                if deleted:
                    log.info("expired jobs deleted", extra={"jobs": deleted})
            await asyncio.sleep(SWEEP_S)

    async def expire_files(self) -> None:
        """Delete expired uploads that no active job needs, and old compile caches. Log the count."""
        jumps = ClockJumpDetector()
        while True:
            needed = named_files(self._registry.live.values())
            now_s = time.time() - max(0.0, jumps.jumped_s())
            if deleted := await asyncio.to_thread(self._uploads.sweep, needed, now_s):
                log.info("expired uploads deleted", extra={"files": deleted})
            await asyncio.to_thread(compile_cache.sweep, self._settings.data_dir, now_s - CACHE_KEEP_S)
            await asyncio.sleep(SWEEP_S)

    async def preload(self) -> None:
        """Load the models that the settings name in `preload`. Failures are logged, without a retry."""
        await self._directory.probes.wait_until_idle()
        for model in self._settings.preload:
            try:
                job = await self._model_jobs.load(model, "auto", None, "preload")
            except TouchstoneError as error:
                log.error("preload failed", extra={"model": model, "code": error.code, "detail": error.detail})
            else:
                await job.ended.wait()


def named_files(jobs: Iterable[LiveJob]) -> set[str]:
    """Return the ids of the uploads that active jobs name."""
    return {file_id for job in jobs if job.active for file_id in job.input_files()}
