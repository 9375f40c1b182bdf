"""Run jobs and faults by the hour, and check memory, descriptors, children and files after each."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from backend.common.types import TERMINAL
from tests.chaos.disk import Disk
from tests.chaos.processes import MARK, bytes_of, gone, marked
from tests.chaos.service import TINY
from tests.service import ROOT, wait_for

STEP_S = 900.0  # of the simulated clock, at once, when all is at rest
CLIENTS = 4
KEEP_BYTES, LOG_BYTES, LOG_FILES = 12_000_000, 200_000, 2
HISTORY_SLACK = 8_000_000  # what the history may grow in the minute between two sweeps, its log, and free pages
MEMORY_SHARE = 0.10
FD_SLACK = 3
# What the faults may lead to; any other ending breaks a promise.
CODES = {
    "worker_crashed",
    "worker_hung",
    "disk_full",
    "quarantined",
    "device_not_ready",
    "internal_error",
    "device_lost",
}


@dataclass
class Sample:
    """What the server holds while nothing runs."""

    hour: float
    jobs: int
    resident_bytes: int
    descriptors: int
    threads: int
    children: int
    history_bytes: int
    log_bytes: int

    def __str__(self) -> str:
        return (
            f"hour {self.hour:5.2f}: {self.jobs:6} jobs, {self.resident_bytes / 1e6:6.1f} MB, "
            f"{self.descriptors} descriptors, {self.threads} threads, {self.children} children, "
            f"history {self.history_bytes / 1e6:5.1f} MB, logs {self.log_bytes / 1e3:.0f} kB"
        )


@dataclass
class Result:
    """What came out."""

    samples: list[Sample] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Endurance:
    """One server from its start to its end."""

    def __init__(self, folder: Path, jobs: int, hours: float, seed: int, say: Callable[[str], None]) -> None:
        self._folder, self._jobs, self._steps = folder, jobs, max(1, round(hours * 3600 / STEP_S))
        self._dice = random.Random(seed)
        self._say = say
        self._disk = Disk(folder / "data")
        self._mark = f"endurance-{seed}-{os.getpid()}"
        self._log = folder / "log" / "server.log"
        self._hours = 0.0
        self._done = 0
        self.result = Result()
        self._faults: dict[str, Callable[[httpx.Client], None]] = {
            "kill worker": lambda http: self._signal("run", signal.SIGKILL),
            "kill probe": self._kill_probe,
            "refresh devices": lambda http: _ask(http, "POST", "/api/devices/refresh", {}),
            "unload": lambda http: _ask(http, "POST", "/api/models/tiny/unload", {}),
            "sleep for an hour": lambda http: self._move("asleep", 3600),
            "clock two hours on": lambda http: self._move("set", 7200),
            "clock two hours back": lambda http: self._move("set", -7200),
            "clock a year on": lambda http: self._move("set", 366 * 86400),
            "clock a year back": lambda http: self._move("set", -366 * 86400),
            "history locked": self._lock_history,
            "nonsense": self._nonsense,
        }

    def run(self) -> Result:
        """All of it."""
        began = time.monotonic()
        self._disk.mount()
        if self._disk.small:
            self._faults["disk full"] = self._fill_disk
        self._process, self._url = self._start()
        try:
            with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
                http.get("/api/devices", params={"wait_s": "60"})
            self._quiet()
            for step in range(self._steps):
                self._step(step)
            self._end()
        finally:
            if self._process.poll() is None:
                self._process.kill()
            with self._process:  # waits, and closes the pipes
                pass
            self._disk.unmount()
        self._judge()
        self.result.seconds = time.monotonic() - began
        return self.result

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        config = self._folder / "config.yaml"
        settings = {
            "models": {"tiny": {"path": str(TINY)}},
            "default_models": {"text": "tiny"},
            "text": {"context_tokens": 512, "slots": 2, "keep_alive_s": 3 * STEP_S},
            "storage": {"keep_bytes": KEEP_BYTES},
            "log": {"file": str(self._log), "file_bytes": LOG_BYTES, "files": LOG_FILES},
        }
        config.write_text(json.dumps(settings))
        words = [sys.executable, "-m", "tests.endurance.server", str(config), str(self._disk.folder)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
        process = subprocess.Popen(
            words, cwd=ROOT, env={**environ, MARK: self._mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        line = process.stdout.readline()
        assert " listening on " in line, "the server does not start"
        return process, line.split()[-1]

    def _step(self, number: int) -> None:
        share = self._jobs * (number + 1) // self._steps - self._done
        fault = self._dice.choice(list(self._faults)) if number % 2 else None
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            parts = [share // CLIENTS + (place < share % CLIENTS) for place in range(CLIENTS)]
            work = [pool.submit(self._client, part, self._dice.randrange(1 << 30)) for part in parts]
            if fault:
                self.result.faults[fault] += 1
                with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
                    self._faults[fault](http)
            for each in work:
                each.result()
        self._done += share
        self._quiet()
        self._hours += STEP_S / 3600
        self._sample()
        self._move("awake", STEP_S)

    def _client(self, jobs: int, seed: int) -> None:
        dice = random.Random(seed)
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
            for number in range(jobs):
                body = {
                    "prompt": f"{seed} {number}",
                    "options": {"max_tokens": dice.randint(1, 8)},
                    "fallback": "never",
                }
                way = dice.choice(["wait", "wait", "stream", "leave", "async", "cancel", "delete"])
                with contextlib.suppress(httpx.RemoteProtocolError):  # a kept connection was closed by the moved clock
                    self._one(http, way, body)

    def _one(self, http: httpx.Client, way: str, body: dict[str, Any]) -> None:
        if way in ("stream", "leave"):
            with http.stream("POST", "/api/generate", json={**body, "stream": True}) as answer:
                for _ in answer.iter_lines():
                    if way == "leave":
                        return
            return
        prefer = {"Prefer": "respond-async"} if way in ("async", "cancel") else {}
        answer = http.post("/api/generate", json=body, headers=prefer)
        said = answer.json()
        if answer.status_code >= 400:
            if said["code"] not in CODES:
                self._wrong(f"{answer.status_code}: {said}")
        elif way == "cancel":
            http.post(f"/api/jobs/{said['id']}/cancel")
        elif way == "delete":
            http.delete(f"/api/jobs/{said['id']}")

    def _quiet(self) -> None:
        """Waits until nothing runs and nothing is probed."""
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
            http.get("/api/devices", params={"wait_s": "60"})
            wait_for(lambda: http.get("/api/health").json()["jobs"] == {"queued": 0, "running": 0}, 90)
            (device,) = http.get("/api/devices").json()["devices"]
            if device["quarantined_models"] or device["state"] != "ready":
                http.post(f"/api/devices/{device['id']}/release", json={})
                http.get("/api/devices", params={"wait_s": "60"})

    def _sample(self) -> None:
        pid = self._process.pid
        with contextlib.closing(sqlite3.connect(self._disk.folder / "jobs.sqlite3", timeout=10)) as database:
            self._count(database)
        sample = Sample(
            self._hours,
            self._done,
            bytes_of(pid, "VmRSS"),
            len(list(Path(f"/proc/{pid}/fd").iterdir())),
            len(list(Path(f"/proc/{pid}/task").iterdir())),
            len(marked(self._mark, "run", "probe", "download")),
            sum(file.stat().st_size for file in self._disk.folder.glob("jobs.sqlite3*")),
            sum(file.stat().st_size for file in self._log.parent.glob("*")),
        )
        self.result.samples.append(sample)
        if len(self.result.samples) % 4 == 0:
            self._say(str(sample))

    def _count(self, database: sqlite3.Connection) -> None:
        """The endings so far: each job has one, and none that no fault explains."""
        rows = database.execute("SELECT id, status, error FROM jobs").fetchall()
        for job_id, status, error in rows:
            if status not in TERMINAL:
                self._wrong(f"{job_id} is {status} at rest")
            code = json.loads(error)["code"] if error else None
            if code is not None and code not in CODES:
                self._wrong(f"{job_id} ended with {code}: {error}")
        self.result.endings = Counter(status for _, status, _ in rows)
        self.result.codes = Counter(json.loads(error)["code"] for _, _, error in rows if error)

    def _end(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
            job = http.post("/api/models/tiny/unload", json={}).json()
            wait_for(lambda: http.get(f"/api/jobs/{job['id']}").json()["status"] in TERMINAL)
        for process in marked(self._mark, "run", "probe", "download"):
            self._wrong(f"after the unload a child is left: {process.words}")
        self._process.send_signal(signal.SIGTERM)
        if (code := self._process.wait(20)) != 0:
            self._wrong(f"the server ended with {code}")
        for process in gone(self._mark, 2.0):
            self._wrong(f"a process is left: {process.words}")
        with contextlib.closing(sqlite3.connect(self._disk.folder / "jobs.sqlite3")) as database:
            if (found := database.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                self._wrong(f"the history is damaged: {found}")
        for file in self._log.parent.glob("*"):
            if "Traceback" in file.read_text(errors="replace"):
                self._wrong(f"a traceback stands in {file.name}")

    def _judge(self) -> None:
        """Flat: the last third against the third before, when all that is kept has been filled."""
        samples = self.result.samples
        third = max(1, len(samples) // 3)
        early, late = samples[third : 2 * third] or samples, samples[-third:]
        before, after = (statistics.median(each.resident_bytes for each in part) for part in (early, late))
        if abs(after - before) > MEMORY_SHARE * before:
            self._wrong(f"memory is not flat: {before / 1e6:.1f} MB, later {after / 1e6:.1f} MB")
        for name in ("descriptors", "threads"):
            lowest = [min(getattr(each, name) for each in part) for part in (early, late)]
            if lowest[1] > lowest[0] + FD_SLACK:
                self._wrong(f"{name} are not flat: {lowest[0]}, later {lowest[1]}")
        if (size := max(each.history_bytes for each in samples)) > KEEP_BYTES + HISTORY_SLACK:
            self._wrong(f"the history grew to {size} bytes")
        if (size := max(each.log_bytes for each in samples)) > LOG_BYTES * LOG_FILES + 10_000:
            self._wrong(f"the logs grew to {size} bytes")
        if max(each.children for each in samples) > 1:
            self._wrong("at rest there was more than one child")

    # Faults

    def _move(self, kind: str, seconds: float) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{kind} {seconds}\n")
        self._process.stdin.flush()

    def _signal(self, kind: str, number: int) -> None:
        for process in marked(self._mark, kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _kill_probe(self, http: httpx.Client) -> None:
        _ask(http, "POST", "/api/devices/refresh", {})
        with contextlib.suppress(AssertionError):  # it may be over before we see it
            wait_for(lambda: marked(self._mark, "probe"), 2)
        self._signal("probe", signal.SIGKILL)

    def _lock_history(self, http: httpx.Client) -> None:
        with contextlib.closing(sqlite3.connect(self._disk.folder / "jobs.sqlite3", timeout=10)) as other:
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                _ask(http, "GET", "/api/health")
                other.rollback()

    def _fill_disk(self, http: httpx.Client) -> None:
        self._disk.fill(self._dice.choice([0, 20_000, 300_000]))
        _ask(http, "POST", "/api/generate", {"prompt": "full", "options": {"max_tokens": 2}})
        self._disk.free()

    def _nonsense(self, http: httpx.Client) -> None:
        for content in (b"{", b"\xff", b"[" * 5000, b'{"prompt": 1}'):
            http.post("/api/generate", content=content, headers={"Content-Type": "application/json"})

    def _wrong(self, words: str) -> None:
        if words not in self.result.broken:
            self.result.broken.append(words)
            self._say(f"BROKEN {words}")


def _ask(http: httpx.Client, method: str, path: str, body: Any = None) -> None:
    http.request(method, path, json=body)
