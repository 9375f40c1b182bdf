"""The loaded models: at most one worker on a lane, replaced when another model is asked for, unloaded when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from backend.children import Spawn
from backend.machine import usable_threads
from backend.settings import Settings
from backend.workers import Limits, Worker, WorkerKey

log = logging.getLogger(__name__)


class Pool:
    """Workers by lane. Callers hold the lane's turn while they use one."""

    def __init__(self, settings: Settings, pythons: Mapping[str, str], spawn: Spawn) -> None:
        self._settings = settings
        self._pythons = pythons
        self._spawn = spawn
        self._workers: dict[str, Worker] = {}
        self._idle: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> list[Worker]:
        """All workers with a loaded model."""
        return [worker for worker in self._workers.values() if worker.alive]

    def holding(self, model: str) -> list[tuple[str, WorkerKey]]:
        """Lanes and keys of the workers that hold a model."""
        return [(lane, worker.key) for lane, worker in self._workers.items() if worker.key.model == model]

    def loaded(self, lane: str, key: WorkerKey) -> bool:
        """Whether that very model is loaded there."""
        worker = self._workers.get(lane)
        return worker is not None and worker.alive and worker.key == key

    async def ensure(self, lane: str, key: WorkerKey, model_path: Path) -> tuple[Worker, float]:
        """The worker for `key`, loaded, and the seconds that loading took. A failed load leaves the old one alone."""
        if timer := self._idle.pop(lane, None):
            timer.cancel()
        current = self._workers.get(lane)
        if current and current.alive and current.key == key:
            return current, 0.0
        supervision = self._settings.supervision
        limits = Limits(supervision.silence_s, supervision.load_s, supervision.step_s, supervision.cancel_s)
        fresh = Worker(key, self._pythons[key.runtime], limits, self._spawn)
        start = asyncio.get_running_loop().time()
        text = self._settings.text
        await fresh.load(str(model_path), text.context_tokens, text.threads or usable_threads())
        seconds = asyncio.get_running_loop().time() - start
        log.info("model loaded", extra={"model": key.model, "device": key.device, "seconds": round(seconds, 3)})
        self._workers[lane] = fresh
        if current:
            await current.close()
        return fresh, seconds

    def released(self, lane: str) -> None:
        """Starts the clock after which an unused model is unloaded."""
        if timer := self._idle.pop(lane, None):
            timer.cancel()
        keep_s = self._settings.text.keep_alive_s
        self._idle[lane] = asyncio.get_running_loop().call_later(keep_s, self._unload_soon, lane)

    async def unload(self, lane: str) -> Worker | None:
        """Ends the worker of a lane; returns it, or None if there was none."""
        if timer := self._idle.pop(lane, None):
            timer.cancel()
        worker = self._workers.pop(lane, None)
        if worker:
            await worker.close()
        return worker

    async def close(self) -> None:
        """Ends all workers."""
        await asyncio.gather(*(self.unload(lane) for lane in list(self._workers)))
        for task in self._closing:
            task.cancel()

    def _unload_soon(self, lane: str) -> None:
        task = asyncio.get_running_loop().create_task(self._unload_quietly(lane))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _unload_quietly(self, lane: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self.unload(lane)
