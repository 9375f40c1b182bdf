"""The faults. Each acts once and waits until it is over; all may act at the same time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from backend.common.types import ACTIVE
from tests.chaos.clients import Client
from tests.chaos.ledger import Ledger
from tests.chaos.processes import Process, limit_memory, marked, unlimit_memory
from tests.chaos.service import SILENCE_S, Service

SEARCH_S = 1.5  # how long a fault looks for something to strike
MODELS = ("tiny", "tiny", "large")
MEMORY_STEPS = (0, 1 << 20, 16 << 20, 64 << 20)


class Faults:
    """`kinds` are the names of the faults that this machine allows."""

    def __init__(self, service: Service, ledger: Ledger, clients: list[Client]) -> None:
        self._service = service
        self._ledger = ledger
        self._clients = clients
        self.limited: set[int] = set()  # workers whose memory is limited
        self._kinds: dict[str, Callable[[random.Random], bool]] = {
            "kill worker": self._kill_worker,
            "kill worker that loads": self._kill_loading,
            "kill server": self._kill_server,
            "stop server": self._stop_server,
            "pause worker": self._pause_worker,
            "hang worker": self._hang_worker,
            "pause server": self._pause_server,
            "cut waiting client": lambda dice: self._cut(dice, "wait"),
            "cut stream": lambda dice: self._cut(dice, "stream"),
            "cancel": self._cancel,
            "rerun": self._rerun,
            "delete": self._delete,
            "unload": lambda dice: self._ask("POST", f"/api/models/{dice.choice(MODELS)}/unload"),
            "load": lambda dice: self._ask("POST", f"/api/models/{dice.choice(MODELS)}/load", {"device": "cpu"}),
            "refresh devices": lambda dice: self._ask("POST", "/api/devices/refresh", {}),
            "kill probe": self._kill_probe,
            "limit memory": self._limit_memory,
            "limit memory of one that loads": self._limit_loading,
        }
        if service.disk.small:
            self._kinds["fill disk"] = self._fill_disk

    @property
    def kinds(self) -> list[str]:
        """What can be done here."""
        return list(self._kinds)

    def strike(self, kind: str, seed: int) -> bool:
        """Does it; False if there was nothing to strike."""
        dice = random.Random(seed)
        time.sleep(dice.uniform(0, 0.5))
        return self._kinds[kind](dice)

    def put_right(self) -> None:
        """Undoes what lasts: a full disk, limited memory."""
        self._service.disk.free()
        for pid in self.limited & {worker.pid for worker in self._workers()}:
            with contextlib.suppress(OSError):
                unlimit_memory(pid)
        self.limited.clear()

    # Workers

    def _kill_worker(self, dice: random.Random) -> bool:
        return self._signal(self._soon(lambda: self._workers(), dice), signal.SIGKILL, "kill worker")

    def _kill_loading(self, dice: random.Random) -> bool:
        return self._signal(self._fresh_worker(dice), signal.SIGKILL, "kill worker", dice.uniform(0, 0.4))

    def _pause_worker(self, dice: random.Random) -> bool:
        """Shorter than the limit: nobody may notice."""
        return self._stop_and_go(self._soon(lambda: self._workers(), dice), dice.uniform(0.1, 0.6), "pause worker")

    def _hang_worker(self, dice: random.Random) -> bool:
        return self._stop_and_go(self._soon(lambda: self._workers(), dice), SILENCE_S + 1.0, "hang worker")

    def _limit_memory(self, dice: random.Random) -> bool:
        return self._limit(self._soon(lambda: self._workers(), dice), dice)

    def _limit_loading(self, dice: random.Random) -> bool:
        return self._limit(self._fresh_worker(dice), dice)

    def _limit(self, worker: Process | None, dice: random.Random) -> bool:
        began = time.time()
        if worker is None:
            return False
        with contextlib.suppress(OSError):
            self.limited.add(worker.pid)
            limit_memory(worker.pid, dice.choice(MEMORY_STEPS))
            time.sleep(0.5)
            self._ledger.strike("limit memory", began, worker.pid)
            return True
        return False

    def _fresh_worker(self, dice: random.Random) -> Process | None:
        """A worker that has just been started, after one was unloaded."""
        before = {worker.pid for worker in self._workers()}
        model = dice.choice(MODELS)
        for verb in ("unload", "load"):
            self._ask("POST", f"/api/models/{model}/{verb}", {"device": "cpu"} if verb == "load" else None)
        return self._soon(lambda: [worker for worker in self._workers() if worker.pid not in before], dice)

    # The server

    def _kill_server(self, dice: random.Random) -> bool:
        with self._service.striking:
            began = time.time()
            self._service.kill()
            self._service.start()
            self._ledger.strike("kill server", began)
        return True

    def _stop_server(self, dice: random.Random) -> bool:
        with self._service.striking:
            began = time.time()
            self._service.stop()
            self._service.start()
            self._ledger.strike("stop server", began)
        return True

    def _pause_server(self, dice: random.Random) -> bool:
        """Also for longer than a worker may be silent: it is not the worker's fault."""
        with self._service.striking:
            began = time.time()
            self._service.pause(dice.choice((0.1, 0.5, 1.0, SILENCE_S + 0.5)))
            self._ledger.strike("pause server", began)
        return True

    # The disk and the devices

    def _fill_disk(self, dice: random.Random) -> bool:
        if self._service.disk.full:
            return False
        began = time.time()
        self._service.disk.fill()
        time.sleep(dice.uniform(0.2, 1.5))
        self._service.disk.free()
        self._ledger.strike("fill disk", began)
        return True

    def _kill_probe(self, dice: random.Random) -> bool:
        """The device is gone for those who come then; the next refresh finds it again."""
        self._ask("POST", "/api/devices/refresh", {})
        probe = self._soon(lambda: marked(self._service.run, "probe"), dice)
        return self._signal(probe, signal.SIGKILL, "kill probe")

    # Callers

    def _cut(self, dice: random.Random, way: str) -> bool:
        end = time.monotonic() + SEARCH_S
        began = time.time()
        while time.monotonic() < end:
            there = [client for client in self._clients if client.waits_for == way]
            if there and dice.choice(there).cut():
                self._ledger.strike(f"cut {way}", began)
                return True
            time.sleep(0.002)
        return False

    def _cancel(self, dice: random.Random) -> bool:
        end = time.monotonic() + SEARCH_S
        done = False
        while not done and time.monotonic() < end:
            for job in self._some_jobs(dice, status=",".join(ACTIVE)):
                self._ledger.cancelled.setdefault(job["id"], time.time())  # before, as the answer may get lost
                done |= self._ask("POST", f"/api/jobs/{job['id']}/cancel", allowed=(202, 404, 409))
        return done

    def _rerun(self, dice: random.Random) -> bool:
        done = False
        for job in self._some_jobs(dice, task="text"):
            mark = job["request"]["prompt"].split()[0]
            self._ledger.reruns[mark] += 1
            done |= self._ask("POST", f"/api/jobs/{job['id']}/rerun", allowed=(202, 404, 409, 507))
        return done

    def _delete(self, dice: random.Random) -> bool:
        done = False
        for job in self._some_jobs(dice):
            with self._answer("DELETE", f"/api/jobs/{job['id']}") as answer:
                if answer is None or answer.status_code == 204:
                    self._ledger.deleted.add(job["id"])  # without an answer it may have happened
                    done = True
                elif answer.status_code not in (404, 409, 503, 507):
                    self._ledger.wrong(f"DELETE of {job['id']}: {answer.status_code} {answer.text}")
        return done

    # How it is done

    def _workers(self) -> list[Process]:
        return marked(self._service.run, "run")

    def _soon(self, look: Callable[[], list[Process]], dice: random.Random) -> Process | None:
        end = time.monotonic() + SEARCH_S
        while time.monotonic() < end:
            if found := look():
                return dice.choice(found)
            time.sleep(0.005)
        return None

    def _signal(self, process: Process | None, number: int, kind: str, after_s: float = 0.0) -> bool:
        time.sleep(after_s)
        if process is None or not process.alive:
            return False
        began = time.time()
        os.kill(process.pid, number)
        self._ledger.strike(kind, began, process.pid)
        return True

    def _stop_and_go(self, worker: Process | None, seconds: float, kind: str) -> bool:
        if worker is None or not worker.alive:
            return False
        began = time.time()
        os.kill(worker.pid, signal.SIGSTOP)
        end = time.monotonic() + seconds
        while worker.alive and time.monotonic() < end:
            time.sleep(0.02)
        if worker.alive:
            os.kill(worker.pid, signal.SIGCONT)
        self._ledger.strike(kind, began, worker.pid)
        return True

    def _some_jobs(self, dice: random.Random, **query: str) -> list[dict[str, Any]]:
        with self._answer("GET", "/api/jobs", params={"limit": "40", **query}) as answer:
            jobs: list[dict[str, Any]] = answer.json()["jobs"] if answer is not None and answer.is_success else []
        return dice.sample(jobs, min(len(jobs), dice.randint(1, 4)))

    def _ask(self, method: str, path: str, body: Any = None, allowed: tuple[int, ...] = (202, 409, 507)) -> bool:
        service = self._service
        life = service.life
        with self._answer(method, path, json=body) as answer:
            if answer is None:
                return False
            stops = answer.status_code == 503 and not (service.up.is_set() and service.life == life)
            if answer.status_code not in allowed and not stops:
                self._ledger.wrong(f"{method} {path}: {answer.status_code} {answer.text}")
            return answer.is_success

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, **more: Any) -> Iterator[httpx.Response | None]:
        """The answer, or None where the server was struck dead meanwhile."""
        service = self._service
        service.up.wait(30)
        life = service.life
        answer = None
        try:
            answer = httpx.request(method, service.server.url + path, timeout=60, trust_env=False, **more)
        except httpx.TransportError as error:
            if service.up.is_set() and service.life == life:
                self._ledger.wrong(f"{method} {path}: {error!r} while the server lived")
        yield answer
