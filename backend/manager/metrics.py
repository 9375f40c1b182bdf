"""What Prometheus may ask: counters of the jobs that have ended, and gauges read from the manager when it asks.

Labels are ids of devices, tasks, models and codes alone: nothing that a caller wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from backend import __version__
from backend.common.types import ACTIVE, DeviceState

if TYPE_CHECKING:
    from backend.manager.core import Core

MEDIA_TYPE = CONTENT_TYPE_LATEST
NO_DEVICE, UNKNOWN_DEVICE = "none", "unknown"  # no worker was given the job; its evidence names no device
_FIRST_TOKEN_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_JOB_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """Counts jobs as they end; `exposition` adds what is so now."""

    def __init__(self, manager: Core) -> None:
        self._registry = CollectorRegistry()
        where = ["device", "task"]
        self._jobs = Counter(
            "touchstone_jobs",
            "Jobs that ended, by device, task and ending",
            [*where, "status"],
            registry=self._registry,
        )
        self._tokens = Counter("touchstone_tokens", "Tokens generated", where, registry=self._registry)
        self._audio = Counter("touchstone_audio_seconds", "Seconds of audio made", where, registry=self._registry)
        self._fallbacks = Counter(
            "touchstone_fallbacks",
            "Attempts that another device had to take over, by the one that failed and the reason's code",
            ["device", "reason"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "touchstone_first_token_seconds",
            "From the start of the work to the first token",
            where,
            buckets=_FIRST_TOKEN_S,
            registry=self._registry,
        )
        self._job_time = Histogram(
            "touchstone_job_seconds",
            "From acceptance to the end of jobs that were done",
            where,
            buckets=_JOB_S,
            registry=self._registry,
        )
        self._registry.register(_Now(manager))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def count_job(self, job: dict[str, Any]) -> None:
        """Counts a job (the Job as callers see it) that has just ended."""
        receipt: dict[str, Any] = job["receipt"] or {}
        device = (receipt["used"] or UNKNOWN_DEVICE) if receipt else NO_DEVICE
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
        if job["status"] == "done" and times["total_s"] is not None:  # an unload's receipt tells of memory alone
            self._job_time.labels(device, task).observe(times["total_s"])

    def exposition(self) -> bytes:
        """All figures in Prometheus' text form."""
        return generate_latest(self._registry)


class _Now(Collector):
    """What is so at the moment of asking."""

    def __init__(self, manager: Core) -> None:
        self._manager = manager

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the manager may not have started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Reads the manager, which never waits."""
        manager = self._manager
        yield InfoMetricFamily("touchstone", "The running version", {"version": __version__})
        uptime = GaugeMetricFamily("touchstone_uptime_seconds", "Seconds since the start")
        uptime.add_metric([], manager.uptime_s)
        yield uptime
        if manager.disk_free_bytes is not None:
            free = GaugeMetricFamily(
                "touchstone_disk_free_bytes", "Room on the data folder's disk, looked at each minute"
            )
            free.add_metric([], manager.disk_free_bytes)
            yield free
        live = GaugeMetricFamily("touchstone_live_jobs", "Jobs that have not ended", labels=["status"])
        for status in ACTIVE:
            live.add_metric([status], manager.registry.count(status))
        yield live
        waiting = GaugeMetricFamily("touchstone_queue_length", "Jobs that wait for a hardware", labels=["hardware"])
        for hardware in manager.queue_ids():
            waiting.add_metric([hardware], len(manager.queue(hardware)))
        yield waiting
        yield from self._devices()
        memory = GaugeMetricFamily(
            "touchstone_worker_memory_bytes", "Memory that a loaded model's process holds", labels=["device", "model"]
        )
        for worker in manager.pool.workers():
            memory.add_metric([worker.key.device, worker.key.model], worker.resident_bytes or 0)
        yield memory

    def _devices(self) -> Iterable[Metric]:
        state = GaugeMetricFamily("touchstone_device_state", "1 for the state it is in", labels=["device", "state"])
        proof = GaugeMetricFamily("touchstone_proof_seconds", "How long the last proof computed", labels=["device"])
        for device in self._manager.known_devices():
            for name in get_args(DeviceState):
                state.add_metric([device.id, name], float(device.state == name))
            if device.proof:
                proof.add_metric([device.id], device.proof.seconds)
        yield state
        yield proof
