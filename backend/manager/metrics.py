"""Prometheus metrics: counters and histograms of ended jobs, and gauges that are read at each scrape.

Labels are ids of devices, tasks and models, and error codes, never text that a caller wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from backend import __version__
from backend.common.types import ACTIVE, DeviceState, JsonObject
from backend.jobs.registry import JobRegistry
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.worker_pool import WorkerPool

MEDIA_TYPE = CONTENT_TYPE_LATEST
NO_DEVICE, UNKNOWN_DEVICE = "none", "unknown"  # labels for: no worker got the job; the evidence names no device
_FIRST_TOKEN_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_JOB_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """Counts jobs as they end. `exposition` returns the counters with the gauges that were registered."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        where = ["device", "task"]
        self._jobs = Counter(
            "touchstone_jobs",
            "Ended jobs by device, task and final status",
            [*where, "status"],
            registry=self._registry,
        )
        self._tokens = Counter("touchstone_tokens", "Tokens generated", where, registry=self._registry)
        self._audio = Counter("touchstone_audio_seconds", "Seconds of audio generated", where, registry=self._registry)
        self._fallbacks = Counter(
            "touchstone_fallbacks",
            "Attempts that fell back to another device, by the device that failed and the error code",
            ["device", "reason"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "touchstone_first_token_seconds",
            "Time to first token: from the worker's start on a job, in seconds",
            where,
            buckets=_FIRST_TOKEN_S,
            registry=self._registry,
        )
        self._job_time = Histogram(
            "touchstone_job_seconds",
            "Latency of successful jobs, from acceptance to end, in seconds",
            where,
            buckets=_JOB_S,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def register(self, collector: Collector) -> None:
        """Add a collector of gauges."""
        self._registry.register(collector)

    def count_job(self, job: JsonObject) -> None:
        """Count a job that has just ended. `job` is the Job as the API returns it."""
        receipt: JsonObject = job["receipt"] or {}
        device = _device_of(receipt, is_done=job["status"] == "done") if receipt else NO_DEVICE
        task = job["task"]
        self._jobs.labels(device, task, job["status"]).inc()
        if not receipt:
            return
        failed = [attempt for attempt in receipt["attempts"] if attempt["error"]]
        for attempt in failed if job["status"] == "done" else failed[:-1]:
            self._fallbacks.labels(attempt["device"], attempt["error"]).inc()
        for part in receipt["parts"] or [receipt]:
            where = part["used"] or UNKNOWN_DEVICE
            self._tokens.labels(where, task).inc(part["counts"].get("tokens", 0))
            self._audio.labels(where, task).inc(part["audio_s"] or 0)
        times = receipt["times"]
        if times["first_token_s"] is not None:
            self._first_token.labels(device, task).observe(times["first_token_s"])
        if job["status"] == "done" and times["total_s"] is not None:  # the receipt of an unload has no times
            self._job_time.labels(device, task).observe(times["total_s"])

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class Gauges(Collector):
    """Reads the state of the service at each scrape. Reading never waits."""

    def __init__(
        self,
        directory: DeviceDirectory,
        pool: WorkerPool,
        registry: JobRegistry,
        *,
        uptime_s: Callable[[], float],
        disk_free_bytes: Callable[[], int | None],
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._registry = registry
        self._uptime_s = uptime_s
        self._disk_free_bytes = disk_free_bytes

    def describe(self) -> Iterable[Metric]:
        """Return no description in advance, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield all gauges."""
        yield InfoMetricFamily("touchstone", "The running version", {"version": __version__})
        uptime = GaugeMetricFamily("touchstone_uptime_seconds", "Seconds since the start")
        uptime.add_metric([], self._uptime_s())
        yield uptime
        if (free_bytes := self._disk_free_bytes()) is not None:
            free = GaugeMetricFamily(
                "touchstone_disk_free_bytes", "Free space on the data folder's disk, checked once a minute"
            )
            free.add_metric([], free_bytes)
            yield free
        live = GaugeMetricFamily("touchstone_live_jobs", "Jobs that have not ended", labels=["status"])
        for status in ACTIVE:
            live.add_metric([status], self._registry.count(status))
        yield live
        waiting = GaugeMetricFamily(
            "touchstone_queue_length", "Queue depth: jobs queued per hardware", labels=["hardware"]
        )
        for hardware_id in self._directory.queue_ids():
            waiting.add_metric([hardware_id], len(self._directory.queue(hardware_id)))
        yield waiting
        yield from self._devices()
        memory = GaugeMetricFamily(
            "touchstone_worker_memory_bytes", "Memory of the worker that holds a model", labels=["device", "model"]
        )
        for worker in self._pool.workers():
            memory.add_metric([worker.key.device, worker.key.model], worker.resident_bytes or 0)
        yield memory

    def _devices(self) -> Iterable[Metric]:
        state = GaugeMetricFamily(
            "touchstone_device_state", "1 for the device's current state, else 0", labels=["device", "state"]
        )
        proof = GaugeMetricFamily(
            "touchstone_proof_seconds", "Duration of the device's last proof, in seconds", labels=["device"]
        )
        for device in self._directory.known_devices():
            for name in get_args(DeviceState):
                state.add_metric([device.id, name], float(device.state == name))
            if device.proof:
                proof.add_metric([device.id], device.proof.seconds)
        yield state
        yield proof


def _device_of(receipt: JsonObject, is_done: bool) -> str:
    """Return the device that ran a job, or the one of its last attempt for a job that failed before it ran."""
    used: str | None = receipt["used"]
    attempts = receipt["attempts"]
    return used or (attempts[-1]["device"] if attempts and not is_done else UNKNOWN_DEVICE)
