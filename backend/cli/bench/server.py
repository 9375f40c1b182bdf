"""`bench server`: the service under load: latency of health and admission, memory, cancel, worker crash, shutdown."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from backend.cli.bench.harness.isolated_server import Service, work
from backend.common.config.settings import Settings
from backend.common.types import TERMINAL
from backend.manager.benchmarks.rows import Row, resident_bytes, row
from backend.models import Catalogue

GENERATING, FOLLOWERS, HEALTH_CALLS = 4, 50, 1000
QUEUED, FINISHED, AT_ONCE, REPEATS = 1000, 2000, 8, 5
HEALTH_EACH_S = 0.01
WARM_JOBS = 100  # before memory is measured: the first jobs load shared modules
LONG = {"prompt": "Write a very long story about a river.", "options": {"max_tokens": 3000, "temperature": 0}}
SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 4, "temperature": 0}, "model": "small"}
ENDLESS = {  # seconds of prefill: with a seed no KV cache is reused
    "prompt": "Tell me more about rivers and mills. " * 350,
    "options": {"max_tokens": 3000, "temperature": 0, "seed": 1},
}


def measure(settings: Settings, small: Path | None) -> list[Row]:
    """Measure everything. `small` is a GGUF for thousands of jobs. Default: the default model."""
    catalogue = Catalogue(settings)
    model = catalogue.path_of(catalogue.default_for("text"))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), {"large": model, "small": small or model})
        for part in (_health, _cancels, _dead_worker, _acceptance, _memory):
            with service.running():
                rows += part(service)
        return rows + _stops(service)


class _Crowd:
    """Clients that generate continuously, and followers that read their streams, until `enough` is set."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._current: dict[int, str] = {}
        self.enough = threading.Event()

    @property
    def there(self) -> bool:
        """Whether every client has a job."""
        return len(self._current) == GENERATING

    def generate(self, number: int) -> None:
        """Run one client."""
        body = {**LONG, "options": {"max_tokens": 64, "temperature": 0}}
        headers = {"Prefer": "respond-async", "X-Client-Id": str(number)}
        while not self.enough.is_set():
            self._current[number] = self._service.ask("POST", "/api/generate", body, **headers)["id"]
            self._service.until(self._current[number], *TERMINAL)

    def follow(self, number: int) -> None:
        """Run one follower. After a job it follows the next one."""
        while not self.enough.is_set():
            if job_id := self._current.get(number % GENERATING):
                self._service.until(job_id, *TERMINAL)


def _health(service: Service) -> list[Row]:
    """Measure the latency of /api/health on one connection, as a page or script uses it."""
    crowd = _Crowd(service)
    times, failed = [], 0
    with ThreadPoolExecutor(GENERATING + FOLLOWERS) as pool:
        for number in range(GENERATING):
            pool.submit(crowd.generate, number)
        for number in range(FOLLOWERS):
            pool.submit(crowd.follow, number)
        while not crowd.there:
            time.sleep(0.01)
        http = HTTPConnection(service.address, timeout=60)
        for _ in range(HEALTH_CALLS):
            start = time.perf_counter()
            http.request("GET", "/api/health")
            answer = http.getresponse()
            answer.read()
            times.append((time.perf_counter() - start) * 1000)
            failed += answer.status != 200
            time.sleep(HEALTH_EACH_S)
        crowd.enough.set()
    name = f"health, {GENERATING} jobs, {FOLLOWERS} followers"
    return [
        row(f"{name}, median", [statistics.median(times)], "ms"),
        row(f"{name}, p99", [statistics.quantiles(times, n=100)[98]], "ms"),
        row(f"{name}, failed of {HEALTH_CALLS}", [failed], "calls"),
    ]


def _cancels(service: Service) -> list[Row]:
    """Measure the time from a cancel to the start of the next job in the same queue."""
    seconds: dict[str, list[float]] = {"loading": [], "prefill": [], "decoding": []}
    for _ in range(REPEATS):
        for phase, times in seconds.items():
            if phase == "loading":
                service.until(service.ask("POST", "/api/models/large/unload")["id"], *TERMINAL)
            else:
                service.ask("POST", "/api/generate", {**LONG, "options": {"max_tokens": 1}})
            job_id = service.begin(**(ENDLESS if phase == "prefill" else LONG))
            service.until(job_id, {"loading": "loading", "prefill": "progress", "decoding": "token"}[phase], *TERMINAL)
            following = service.begin(**SHORT)
            start = time.perf_counter()
            service.ask("POST", f"/api/jobs/{job_id}/cancel")
            times.append(service.until(following, "loading", "running", *TERMINAL)["arrived"] - start)
            service.drained()
    return [row(f"cancel to lane free, {phase}", times, "s") for phase, times in seconds.items()]


def _dead_worker(service: Service) -> list[Row]:
    """Measure the time from `kill -9` of the worker to the error event of its job."""
    times = []
    for _ in range(REPEATS):
        pid = service.ask("POST", "/api/generate", {**LONG, "options": {"max_tokens": 1}})["receipt"]["worker_pid"]
        job_id = service.begin(**LONG)
        service.until(job_id, "token")
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(service.until, job_id, *TERMINAL)
            start = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            times.append((ended.result()["arrived"] - start) * 1000)
    return [row("kill -9 of a worker to the error event", times, "ms")]


def _acceptance(service: Service) -> list[Row]:
    """Measure the latency of accepting jobs on one connection while a job occupies the device."""
    service.begin(**LONG)
    http = HTTPConnection(service.address)
    times = []
    for _ in range(QUEUED):
        start = time.perf_counter()
        service.post(http, SHORT)
        times.append(time.perf_counter() - start)
    return [
        row(f"{QUEUED} jobs queued", [sum(times)], "s"),
        row("one job queued", [seconds * 1000 for seconds in times], "ms"),
    ]


def _memory(service: Service) -> list[Row]:
    """Measure the server's resident memory over many finished jobs of several clients."""
    work(service.address, SHORT, WARM_JOBS, AT_ONCE)
    sizes = [resident_bytes(service.process.pid)]
    for _ in range(FINISHED // 50):
        work(service.address, SHORT, 50, AT_ONCE)
        sizes.append(resident_bytes(service.process.pid))
    start, most, end = (size / 1e6 for size in (sizes[0], max(sizes), sizes[-1]))
    return [
        row(f"server memory after {WARM_JOBS} jobs", [start], "MB"),
        row(f"server memory, most over {FINISHED} more", [most], "MB", ratio=most / start),
        row("server memory at their end", [end], "MB", ratio=end / start),
    ]


def _stops(service: Service) -> list[Row]:
    """Measure the time from SIGTERM to the exit, with a running job and open streams."""
    times = []
    for _ in range(REPEATS):
        with service.running(), ThreadPoolExecutor(FOLLOWERS) as pool:
            job_id = service.begin(**LONG)
            service.until(job_id, "token")
            for _ in range(FOLLOWERS):
                pool.submit(service.until, job_id, *TERMINAL)
            start = time.perf_counter()
            service.process.terminate()
            service.process.wait()
            times.append(time.perf_counter() - start)
    return [row(f"SIGTERM to exit, {FOLLOWERS} open streams", times, "s")]
