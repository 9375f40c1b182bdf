"""Runs the rounds of a benchmark. The targets take turns, so that a change in the machine's speed affects all of them.

Each round of a target holds the queue of its hardware and releases it afterwards, so jobs can run between rounds. The
workers are the benchmark's own. Idle models of the same hardware are evicted first: memory is then free, and the load
time is measured. A worker that hits a timeout counts as hung, as in a job.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.child.handle import Spawn
from backend.common.config.settings import Settings
from backend.common.data_dir import scratch_home, scratch_prefix
from backend.common.errors import JobCancelled, PlacementTooLow, TouchstoneError, WorkerCrashed, WorkerHung
from backend.common.system.resources import usable_threads
from backend.common.types import Progress
from backend.jobs.receipt import ReceiptBuilder, is_too_low
from backend.jobs.registry import JobRegistry
from backend.manager.benchmarks.candidates import Candidate, Skipped, nothing_to_measure
from backend.manager.benchmarks.power_meter import PowerMeter, free_bytes
from backend.manager.benchmarks.trial import Figures, Sample, Trial
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.quarantine import WorkerDeath
from backend.scheduling.target_selection import unusable_error
from backend.scheduling.worker import Worker
from backend.scheduling.worker_pool import LoadedModel, WorkerPool

CALLER = "bench"
CONTEXT_TOKENS = 1024  # enough for a trial; small, so that several streams fit into memory
KEEP_ALIVE_S = 3600.0


@dataclass
class MeasuredTarget:
    """A candidate and its results so far."""

    candidate: Candidate
    rounds: list[Figures] = field(default_factory=list)
    sample: Sample = Sample()  # noqa: RUF009 (frozen)
    load_s: float | None = None
    memory_bytes: int | None = None
    streams: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    trial: Trial | None = None
    watts: list[float] = field(default_factory=list)  # of the processors, if they have a counter
    card_watts: list[float] = field(default_factory=list)
    card_free: int | None = None  # free bytes of the card's own memory before the model was loaded
    card_bytes: int | None = None  # the largest use of the card's memory, as reported by its driver


@dataclass
class BenchmarkResults:
    """The results of all targets. `load` is the load average per processor before the start, None if unknown."""

    targets: list[MeasuredTarget]
    skipped: list[Skipped]
    disturbed: int = 0  # rounds during which other jobs ran
    load: float | None = None


class BenchmarkRunner:
    """One benchmark of some candidates."""

    def __init__(
        self,
        settings: Settings,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        pythons: Mapping[str, str],
        spawn: Spawn,
        *,
        runs: int,
        streams: int,
        scratch_dir: Path,
        cancelling: asyncio.Event,
        report_progress: Callable[[Progress], Awaitable[None]],
    ) -> None:
        """`runs` rounds are measured after one warm-up. `pool` is the service's, `scratch_dir` is the caller's."""
        self._directory = directory
        self._service_pool = pool
        self._registry = registry
        self._runs = runs
        self._streams = streams
        self._scratch_dir = scratch_dir
        self._cancelling = cancelling
        self._report_progress = report_progress
        self._pool = WorkerPool(_trial_settings(settings, streams), pythons, spawn, found=directory.detected_device)
        self._disturbed = 0
        self._done = 0

    async def run(self, candidates: Sequence[Candidate], skipped: Sequence[Skipped]) -> BenchmarkResults:
        """Measure the candidates. One that fails is skipped with its reason. Raises DeviceNotReady if all fail."""
        targets, skips, load = [MeasuredTarget(candidate) for candidate in candidates], list(skipped), _load_average()
        try:
            for number in range(self._runs + 1):  # the first round is the warm-up
                first = number % len(targets) if targets else 0
                for target in targets[first:] + targets[:first]:
                    try:
                        await self._round(target, len(targets) * (self._runs + 1))
                    except JobCancelled:
                        raise
                    except TouchstoneError as error:
                        targets.remove(target)
                        failed = target.candidate
                        skips.append(Skipped(failed.device.id, failed.engine, failed.entry.id, error.detail))
        finally:
            await self._pool.close("benchmark ended")
        if not targets:
            raise nothing_to_measure(skips)
        return BenchmarkResults(targets, skips, self._disturbed, load)

    async def _round(self, target: MeasuredTarget, total: int) -> None:
        directory, candidate = self._directory, target.candidate
        queue = directory.queue(candidate.device.hardware_id or candidate.device.id)
        await self._report_progress(Progress(candidate.title, self._done, total, "runs"))
        async with queue.acquire(CALLER):
            if refusal := unusable_error(directory.device(candidate.device.id), candidate.entry.id):
                raise refusal
            if not self._pool.is_loaded(candidate.key):
                await self._unload_idle_models(queue.hardware_id)
                target.card_free = await free_bytes(candidate.device)
            model_path = candidate.entry.path_for(candidate.engine)
            loaded, load_s = await self._pool.acquire(queue.hardware_id, candidate.device, candidate.key, model_path)
            try:
                await self._run_on_worker(target, loaded, load_s)
            except (WorkerCrashed, WorkerHung) as error:
                directory.record_worker_death(
                    WorkerDeath(candidate.place, error, loaded.worker.pid, engines=tuple(candidate.entry.engines))
                )
                raise
            finally:
                self._pool.release(loaded)
            if len(queue):  # a waiting job may need the memory
                await self._pool.close("benchmark gives way to a waiting job")
        self._done += 1

    async def _run_on_worker(self, target: MeasuredTarget, loaded: LoadedModel, load_s: float) -> None:
        candidate, worker = target.candidate, loaded.worker
        warmed_up = target.trial is not None
        if not warmed_up or load_s > 0:
            _check_placement(worker, candidate)
            name = f"{candidate.device.id}-{candidate.engine}-{candidate.entry.id}".replace(":", "-")
            folder = self._scratch_dir / name
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
            target.trial = Trial(worker, candidate.entry.task, self._streams, folder, self._cancelling)
            sample = await target.trial.warm_up()
            self._note_load(target, worker, load_s, sample)
            if not warmed_up:  # the warm-up is the first round
                return
        await self._measure(target)
        target.memory_bytes = max(filter(None, (target.memory_bytes, worker.peak_bytes)), default=None)
        self._directory.quarantine.record_success(candidate.place)

    async def _measure(self, target: MeasuredTarget) -> None:
        assert target.trial
        disturbed_before = self._other_jobs_run()
        async with PowerMeter(target.candidate.device) as meter:
            target.rounds.append(await target.trial.round())
        self._disturbed += disturbed_before or self._other_jobs_run()
        target.watts += [meter.processors_w] if meter.processors_w is not None else []
        target.card_watts += [meter.card_w] if meter.card_w is not None else []
        if target.card_free is not None and (free := await free_bytes(target.candidate.device)) is not None:
            target.card_bytes = max(target.card_bytes or 0, target.card_free - free)

    def _note_load(self, target: MeasuredTarget, worker: Worker, load_s: float, sample: Sample) -> None:
        assert worker.loaded and target.trial
        if target.load_s is None:
            target.load_s, target.sample = load_s, sample
        target.streams, target.threads = target.trial.streams, worker.loaded.threads
        target.versions = {name: version for name, version in worker.loaded.versions.items() if name != "python"}

    def _other_jobs_run(self) -> bool:
        """Return whether jobs other than benchmarks run."""
        jobs = self._registry.live.values()
        return any(job.status in ("loading", "running") and job.task != CALLER for job in jobs)

    async def _unload_idle_models(self, queue_id: str) -> None:
        for loaded in self._service_pool.loaded_models():
            if loaded.queue_id == queue_id and not loaded.users:
                await self._service_pool.unload(loaded, "benchmark needs the memory")


def make_scratch_dir(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for the files of the trials."""
    return tempfile.TemporaryDirectory(prefix=scratch_prefix(settings.data_dir), dir=scratch_home())


def _trial_settings(settings: Settings, streams: int) -> Settings:
    text = replace(settings.text, slots=streams, context_tokens=CONTEXT_TOKENS, keep_alive_s=KEEP_ALIVE_S)
    return replace(settings, text=text)


def _check_placement(worker: Worker, candidate: Candidate) -> None:
    resolution = Resolution(candidate.device.id, "The benchmark names the device.")
    share = ReceiptBuilder(candidate.device.id, resolution, 0.0).record_placement(worker, candidate.device)
    if is_too_low(share, worker.loaded.fit if worker.loaded else None):
        raise PlacementTooLow(f"Only {share:.0%} of {candidate.title} was placed there.", "Choose another device.")


def _load_average() -> float | None:
    """Return the load average of the last minute per processor, None if the system has none."""
    return os.getloadavg()[0] / usable_threads() if hasattr(os, "getloadavg") else None
