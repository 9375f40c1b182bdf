"""Rounds: clients work, faults act, then the load stops and the checks run."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from backend.common.types import Event
from tests.chaos.checks import Judge, Story
from tests.chaos.clients import Client
from tests.chaos.faults import Faults
from tests.chaos.ledger import Ledger, Watched
from tests.chaos.processes import gone, marked
from tests.chaos.pulse import Pulse
from tests.chaos.service import Service
from tests.service import Server, follow

CLIENTS = 4
FAULTS_A_ROUND = 3
REST_S = 90.0
MEMORY_FACTOR = 1.5  # of the server within one life
PAGE = 200
# What a server that was stopped leaves in its data folder.
KEPT = ("buffers.json", "jobs.sqlite3", "lock", "models", "proofs.json", "reserve")


@dataclass
class Result:
    """What came out."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    endings: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    untold: int = 0
    health: str = ""
    memory: str = ""
    longest_stop_s: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)  # faults that could not be made here


class Run:
    """One run from an empty data folder to its last check."""

    def __init__(self, folder: Path, model_file: Path, seed: int, say: Any) -> None:
        self.enough = threading.Event()  # no other round begins
        self._ledger = Ledger()
        self._service = Service(folder, self._ledger, model_file)
        self._dice = random.Random(seed)
        self._working = threading.Event()
        self._clients = [
            Client(f"client-{number}", self._dice.randrange(1 << 30), self._service, self._ledger, self._working)
            for number in range(CLIENTS)
        ]
        self._judge = Judge(self._service)
        self._endings: dict[str, tuple[str, str, int]] = {}  # job id: status, text, last event id
        self._deck: list[str] = []
        self._result = Result(seed)
        self._say = say

    def run(self, rounds: int) -> Result:
        """Does all rounds and says what came out; a violation does not end it."""
        began = time.monotonic()
        self._service.prepare()
        if not self._service.disk.small:
            self._result.without.append("fill disk (this user may not mount a small file system)")
        pulse = Pulse(self._service, self._ledger)
        try:
            self._service.start()
            self._faults = Faults(self._service, self._ledger, self._clients)
            for thread in (*self._clients, pulse):
                thread.start()
            for number in range(1, rounds + 1):
                if not self.enough.is_set():
                    self._round(number)
            pulse.ending.set()
            told = len(self._ledger.violations)
            self._end()
        finally:
            pulse.ending.set()
            self._working.clear()
            for client in self._clients:
                client.ending = True
            if self._service.life:
                self._service.kill()
            self._service.disk.unmount()
        self._sum_up(pulse, time.monotonic() - began)
        self._tell(told)
        return self._result

    def _round(self, number: int) -> None:
        known, clock = len(self._ledger.violations), [time.monotonic()]
        for client in self._clients:
            client.large_share = 0.08 if number % 3 == 0 else 0.02
        kinds = [self._draw() for _ in range(FAULTS_A_ROUND)]
        self._working.set()
        with ThreadPoolExecutor(FAULTS_A_ROUND) as pool:
            striking = [pool.submit(self._faults.strike, kind, self._dice.randrange(1 << 30)) for kind in kinds]
            struck = [kind for kind, strike in zip(kinds, striking, strict=True) if strike.result()]
        self._result.faults.update(struck)
        clock.append(time.monotonic())
        self._come_to_rest()
        clock.append(time.monotonic())
        judged = self._look()
        clock.append(time.monotonic())
        self._prove_alive()
        clock.append(time.monotonic())
        self._service.note_memory()
        self._result.rounds = number
        fresh = self._ledger.violations[known:]
        times = "+".join(f"{end - start:.1f}" for start, end in itertools.pairwise(clock))
        what = ", ".join(struck) or "nothing to strike"
        self._say(f"round {number} ({times} s): {what}; {judged} jobs; {len(fresh)} violations")
        self._tell(known)

    def _tell(self, known: int) -> None:
        """Says what is wrong beyond the first `known`."""
        for wrong in self._ledger.violations[known:]:
            self._say(f"  VIOLATION {wrong}")

    def _draw(self) -> str:
        """Every kind comes once before any comes again."""
        if not self._deck:
            self._deck = self._dice.sample(self._faults.kinds, len(self._faults.kinds))
        return self._deck.pop()

    def _come_to_rest(self) -> None:
        self._working.clear()
        self._faults.put_right()
        self._service.check_alive()
        end = time.monotonic() + REST_S
        for client in self._clients:
            if not client.resting.wait(max(0.0, end - time.monotonic())):
                self._ledger.wrong(f"{client.name} still waits for an answer ({client.waits_for})")
                client.cut()
        with self._http() as http:
            while time.monotonic() < end:
                jobs = http.get("/api/health").json()["jobs"]
                if jobs == {"queued": 0, "running": 0}:
                    return
                time.sleep(0.02)
            self._ledger.wrong(f"jobs that do not end: {jobs}")

    def _look(self) -> int:
        """Judges all jobs that are not judged yet; returns how many."""
        server = self._service.server
        judged = 0
        before: dict[str, str] = {}
        watched: dict[str, list[Watched]] = {}
        for each in self._ledger.watched:
            watched.setdefault(each.job_id, []).append(each)
        listed: set[str] = set()
        with self._http() as http:
            while True:
                page = http.get("/api/jobs", params={"limit": str(PAGE), **before}).json()
                listed |= {job["id"] for job in page["jobs"]}
                for job in page["jobs"]:
                    if job["id"] not in self._endings:
                        self._judge.judge(self._story(server, job["id"], watched))
                        judged += 1
                if not page["next"] or all(job["id"] in self._endings for job in page["jobs"][-20:]) and not judged:
                    break
                before = {"before": page["next"]}
            self._ghosts_and_losses(http)
        self._ledger.watched = [each for each in self._ledger.watched if each.job_id not in self._endings]
        self._integrity()
        return judged

    def _story(self, server: Server, job_id: str, watched: dict[str, list[Watched]]) -> Story:
        job = server.job(job_id)
        events = follow(server, job_id)
        mark = (job["request"].get("prompt") or "").partition(" ")[0]
        told = self._ledger.told.get(mark)
        if told and told.job_id not in (None, job_id) and not self._ledger.reruns[mark]:
            self._ledger.wrong(f"{job_id} and {told.job_id} come of one request")
        if mark and told is None and not mark.startswith("!"):
            self._ledger.wrong(f"{job_id}: nobody asked for it ({mark})")
        self._endings[job_id] = _ending(job, events)
        self._result.endings[job["status"]] += 1
        if job["error"]:
            self._result.codes[job["error"]["code"]] += 1
        own = told if told and told.job_id in (None, job_id) else None
        return Story(job, events, own, watched.get(job_id, []))

    def _ghosts_and_losses(self, http: httpx.Client) -> None:
        for job_id, mark in list(self._ledger.accepted.items()):
            if job_id in self._endings or job_id in self._ledger.deleted:
                continue
            self._ledger.wrong(f"{job_id} was accepted ({mark}) and is lost: {http.get(f'/api/jobs/{job_id}').text}")
            self._endings[job_id] = ("lost", "", 0)

    def _integrity(self) -> None:
        with contextlib.closing(sqlite3.connect(self._service.disk.folder / "jobs.sqlite3", timeout=5)) as database:
            for check in ("integrity_check", "foreign_key_check"):
                found = database.execute(f"PRAGMA {check}").fetchall()
                if found not in ([("ok",)], []):
                    self._ledger.wrong(f"{check}: {found}")

    def _prove_alive(self) -> None:
        """After everything, the next job of each model works; a quarantine is lifted first."""
        with self._http() as http:
            (device,) = http.get("/api/devices", params={"wait_s": "30"}).json()["devices"]
            if device["state"] != "ready" or device["quarantined_models"]:
                http.post(f"/api/devices/{device['id']}/release", json={})
                http.get("/api/devices", params={"wait_s": "30"})
            for model in ("tiny", "large") if self._result.rounds % 3 == 0 else ("tiny",):
                body = {"model": model, "prompt": "! Say hello.", "options": {"max_tokens": 2}, "fallback": "never"}
                answer = http.post("/api/generate", json=body)
                if answer.status_code != 200:
                    self._ledger.wrong(f"the next job of {model} fails: {answer.status_code} {answer.text[:500]}")

    def _end(self) -> None:
        """Unloads all, stops, and looks at what is left: processes, files, and the history as it lies there."""
        with self._http() as http:
            for model in ("tiny", "large"):
                job = http.post(f"/api/models/{model}/unload").json()
                self._service.server.until(job["id"], "done", limit_s=30)
            http.get("/api/devices", params={"wait_s": "30"})
        end = time.monotonic() + 5
        while (left := marked(self._service.run, "run", "probe", "download")) and time.monotonic() < end:
            time.sleep(0.05)
        for process in left:
            self._ledger.wrong(f"process {process.pid} ({' '.join(process.words)}) is left after all was unloaded")
        self._look()
        self._service.stop()
        self._service.start()
        self._service.stop()
        for process in gone(self._service.run, 2.0):
            self._ledger.wrong(f"process {process.pid} is left over")
        for path in self._service.scratch.iterdir():
            self._ledger.wrong(f"{path.name} is left in the temporary folder")
        for path in self._service.disk.folder.iterdir():
            if path.name not in KEPT:
                self._ledger.wrong(f"{path.name} is left in the data folder")
        self._compare()

    def _compare(self) -> None:
        """No ending has changed since it was judged."""
        with contextlib.closing(sqlite3.connect(self._service.disk.folder / "jobs.sqlite3")) as database:
            rows = database.execute("SELECT id, status, output FROM jobs").fetchall()
            for job_id, (status, _, last) in self._endings.items():
                if job_id in self._ledger.deleted or status == "lost":
                    continue
                row = next((row for row in rows if row[0] == job_id), None)
                packs = database.execute("SELECT pack FROM events WHERE job = ? ORDER BY first", [job_id]).fetchall()
                if row is None or row[1] != status or not packs or f"[{last}," not in packs[-1][0]:
                    self._ledger.wrong(f"{job_id}: its ending {status} is not what the history has: {row}")

    def _http(self) -> httpx.Client:
        return httpx.Client(base_url=self._service.server.url, timeout=60, trust_env=False)

    def _sum_up(self, pulse: Pulse, seconds: float) -> None:
        result, service = self._result, self._service
        result.seconds = seconds
        result.lives, result.untold, result.health = service.life, self._judge.untold, pulse.summary()
        result.longest_stop_s = max(service.stop_seconds, default=0.0)
        result.refusals = self._ledger.refusals
        sizes = [size for _, size in service.resident]
        if sizes:
            result.memory = f"{min(sizes) / 1e6:.0f} to {max(sizes) / 1e6:.0f} MB"
            if max(sizes) > MEMORY_FACTOR * min(sizes):
                self._ledger.wrong(f"the server's memory is not flat: {result.memory}")
        result.violations = self._ledger.violations


def _ending(job: dict[str, Any], events: list[Event]) -> tuple[str, str, int]:
    return job["status"], job["output"]["text"] or "", events[-1].id if events else 0
