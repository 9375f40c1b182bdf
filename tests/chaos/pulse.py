"""Request the health route continuously: it must always answer while the server lives."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from urllib.parse import urlsplit

from tests.chaos.ledger import Ledger
from tests.chaos.service import Service

EACH_S = 0.05
LIMIT_S = 2.0  # far above what it should be: this machine may be busy with other things


class Pulse(threading.Thread):
    """Runs until `ending`."""

    def __init__(self, service: Service, ledger: Ledger) -> None:
        super().__init__(name="pulse", daemon=True)
        self._service = service
        self._ledger = ledger
        self.ending = threading.Event()
        self.seconds: list[float] = []
        self._own_stalls: list[tuple[float, float]] = []

    def run(self) -> None:
        """Calls, and takes down how long each answer took while the server was not paused."""
        threading.Thread(target=self._watch_ourselves, name="own pulse", daemon=True).start()
        while not self.ending.wait(EACH_S):
            if not self._service.up.is_set():
                continue
            life, began = self._service.life, time.time()
            try:
                self._call()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._service.up.is_set() and self._service.life == life:
                    self._ledger.wrong(f"health: {error!r} while the server lived")
                continue
            ended = time.time()
            with self._service.striking:  # a pause in progress is noted when it ends
                paused = any(end >= began and start <= ended for start, end in self._service.paused_spans)
            if self._service.life == life and not paused:
                self.seconds.append(ended - began)
                stalled_s = sum(max(0.0, min(end, ended) - max(start, began)) for start, end in self._own_stalls)
                if ended - began - stalled_s > LIMIT_S:
                    self._ledger.wrong(f"health took {ended - began:.1f} s, {stalled_s:.1f} s of it we stood still too")

    def summary(self) -> str:
        """How many, and how long they took."""
        if len(self.seconds) < 2:
            return f"{len(self.seconds)} calls"
        p50, p99 = statistics.median(self.seconds), statistics.quantiles(self.seconds, n=100)[98]
        times = f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest {max(self.seconds) * 1000:.0f} ms"
        stalls = sum(end - start for start, end in self._own_stalls)
        return f"{len(self.seconds)} calls, {times}; this machine stood still for {stalls:.1f} s"

    def _watch_ourselves(self) -> None:
        """When this machine stands still, so do we: that is not the server's fault."""
        before = time.time()
        while not self.ending.wait(EACH_S):
            now = time.time()
            if now - before > 5 * EACH_S:
                self._own_stalls.append((before, now))
            before = now

    def _call(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self._service.server.url).netloc, timeout=30)
        try:
            connection.request("GET", "/api/health")
            answer = connection.getresponse()
            said = json.loads(answer.read())
            if answer.status != 200 or "status" not in said:
                self._ledger.wrong(f"health: {answer.status} {said}")
        finally:
            connection.close()
