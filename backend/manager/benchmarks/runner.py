"""Measures ways of running models, in turns, so that a machine whose pace changes changes it for all.

Each round of a way holds its hardware's lane for itself and gives it up again, so jobs come in between. The workers are
the measurement's own; idle models of that hardware are unloaded first, so that memory is free and loading is measured.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.common.config.settings import Settings
from backend.common.data_dir import scratch_home, scratch_prefix
from backend.common.errors import PlacementTooLow, TouchstoneError, WorkerCrashed, WorkerHung
from backend.common.system.resources import usable_threads
from backend.common.types import Progress
from backend.jobs.receipt import PLACEMENT_FLOOR, ReceiptBuilder
from backend.manager.benchmarks.candidates import Candidate, Skipped, nothing
from backend.manager.benchmarks.power_meter import PowerMeter, free_bytes
from backend.manager.benchmarks.trial import Figures, Sample, Trial
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.target_selection import refusal_of
from backend.scheduling.worker import Worker
from backend.scheduling.worker_pool import LoadedModel, WorkerPool

if TYPE_CHECKING:
    from backend.manager.core import Core

CALLER = "bench"
CONTEXT_TOKENS = 1024  # what the trials need, so that several streams fit beside each other
KEEP_S = 3600.0
Tell = Callable[[Progress], Awaitable[None]]


@dataclass
class MeasuredTarget:
    """A candidate and what was measured of it so far."""

    candidate: Candidate
    rounds: list[Figures] = field(default_factory=list)
    sample: Sample = Sample()  # noqa: RUF009 (frozen)
    load_s: float | None = None
    memory_bytes: int | None = None
    streams: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    trial: Trial | None = None
    watts: list[float] = field(default_factory=list)  # of the processors, where they count what they take
    card_watts: list[float] = field(default_factory=list)
    card_free: int | None = None  # of the card's own memory before the model was loaded
    card_bytes: int | None = None  # the most that it took of it, as its driver tells


@dataclass
class Measured:
    """All that came of a measurement. `load` is how many programs wanted a processor before it began, if known."""

    ways: list[MeasuredTarget]
    skipped: list[Skipped]
    disturbed: int = 0  # rounds during which other jobs ran
    load: float | None = None


class Rounds:
    """One run over some candidates. Its files lie in `folder` until the caller removes it."""

    def __init__(
        self, manager: Core, runs: int, streams: int, folder: Path, cancelling: asyncio.Event, tell: Tell
    ) -> None:
        self._manager = manager
        self._runs = runs
        self._streams = streams
        self._folder = folder
        self._cancelling = cancelling
        self._tell = tell
        self._pool = WorkerPool(
            _settings(manager.settings, streams), manager.pythons, manager.spawn, found=manager.probes.detected_device
        )
        self._disturbed = 0
        self._done = 0

    async def take(self, found: Sequence[Candidate], skipped: Sequence[Skipped]) -> Measured:
        """Measures them. One that fails is left out with its reason. Raises DeviceNotReady if all fail."""
        ways, out, load = [MeasuredTarget(one) for one in found], list(skipped), _load()
        try:
            for number in range(self._runs + 1):  # the first round warms up
                turn = number % len(ways) if ways else 0
                for way in ways[turn:] + ways[:turn]:
                    try:
                        await self._round(way, len(ways) * (self._runs + 1))
                    except TouchstoneError as error:
                        if error.code == "job_cancelled":
                            raise
                        ways.remove(way)
                        one = way.candidate
                        out.append(Skipped(one.device.id, one.engine, one.entry.id, error.detail))
        finally:
            await self._pool.close()
        if not ways:
            raise nothing(out)
        return Measured(ways, out, self._disturbed, load)

    async def _round(self, way: MeasuredTarget, total: int) -> None:
        manager, one = self._manager, way.candidate
        lane = manager.queue(one.device.hardware_id or one.device.id)
        await self._tell(Progress(one.words, self._done, total, "runs"))
        async with lane.acquire(CALLER):
            if refusal := refusal_of(manager.device(one.device.id), one.entry.id):
                raise refusal
            if not self._pool.is_loaded(one.key):
                await self._make_room(lane.hardware_id)
                way.card_free = await free_bytes(one.device)
            held, load_s = await self._pool.acquire(
                lane.hardware_id, one.device, one.key, one.entry.path_for(one.engine)
            )
            try:
                await self._on_worker(way, held, load_s)
            except (WorkerCrashed, WorkerHung) as error:
                manager.worker_died(one.device.id, one.entry.id, error)
                raise
            finally:
                self._pool.release(held)
            if len(lane):  # whoever waits may need the memory
                await self._pool.close()
        self._done += 1

    async def _on_worker(self, way: MeasuredTarget, held: LoadedModel, load_s: float) -> None:
        one, worker = way.candidate, held.worker
        warmed = way.trial is not None
        if not warmed or load_s > 0:
            _check_placement(worker, one)
            folder = self._folder / f"{one.device.id}-{one.engine}-{one.entry.id}".replace(":", "-")
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
            way.trial = Trial(worker, one.entry.task, self._streams, folder, self._cancelling)
            sample = await way.trial.warm_up()
            self._note(way, worker, load_s, sample)
            if not warmed:  # the first of its rounds
                return
        await self._timed(way)
        way.memory_bytes = max(filter(None, (way.memory_bytes, worker.peak_bytes)), default=None)
        self._manager.quarantine.record_success(one.device.id, one.entry.id)

    async def _timed(self, way: MeasuredTarget) -> None:
        assert way.trial
        before = self._others()
        async with PowerMeter(way.candidate.device) as meter:
            way.rounds.append(await way.trial.round())
        self._disturbed += before or self._others()
        way.watts += [meter.processors_w] if meter.processors_w is not None else []
        way.card_watts += [meter.card_w] if meter.card_w is not None else []
        if way.card_free is not None and (free := await free_bytes(way.candidate.device)) is not None:
            way.card_bytes = max(way.card_bytes or 0, way.card_free - free)

    def _note(self, way: MeasuredTarget, worker: Worker, load_s: float, sample: Sample) -> None:
        assert worker.loaded and way.trial
        if way.load_s is None:
            way.load_s, way.sample = load_s, sample
        way.streams, way.threads = way.trial.streams, worker.loaded.threads
        way.versions = {name: version for name, version in worker.loaded.versions.items() if name != "python"}

    def _others(self) -> bool:
        """Whether jobs run that are not ours."""
        jobs = self._manager.registry.live.values()
        return any(job.status in ("loading", "running") and job.task != CALLER for job in jobs)

    async def _make_room(self, lane: str) -> None:
        for held in self._manager.pool.loaded_models():
            if held.queue_id == lane and not held.users:
                await self._manager.pool.unload(held)


def room(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    """A folder for what the trials make."""
    return tempfile.TemporaryDirectory(prefix=scratch_prefix(settings.data_dir), dir=scratch_home())


def _settings(settings: Settings, streams: int) -> Settings:
    text = replace(settings.text, slots=streams, context_tokens=CONTEXT_TOKENS, keep_alive_s=KEEP_S)
    return replace(settings, text=text)


def _check_placement(worker: Worker, one: Candidate) -> None:
    share = ReceiptBuilder(one.device.id, Resolution(one.device.id, "It is measured."), 0.0).record_placement(
        worker, one.device
    )
    if share is not None and share < PLACEMENT_FLOOR:
        raise PlacementTooLow(f"Only {share:.0%} of {one.words} lies there.", "Choose another device.")


def _load() -> float | None:
    """How many programs wanted a processor in the last minute, for each that there is."""
    return os.getloadavg()[0] / usable_threads() if hasattr(os, "getloadavg") else None
