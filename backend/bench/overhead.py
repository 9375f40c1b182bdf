"""`bench overhead`: what the service costs over the engine alone: token rate, first token, health, start, memory.

At one and at several streams through a real engine, in turns, and under many streams and jobs of a stand-in (`fed.py`).
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

from backend.bench import fed
from backend.bench.rows import Row, resident_bytes, row
from backend.bench.served import Service
from backend.bench.text import Client, Timed, bare, decode_rate
from backend.catalogue import Catalogue
from backend.settings import Settings

ENGINE = "llama.cpp"
TOKENS, MANY, MANY_TOKENS = 128, 16, 48
CONTEXT_TOKENS = 512  # of each stream, so that the many fit into the memory of both sides
HEALTH_CALLS = 1000


def measure(settings: Settings, runs: int, pairs: int) -> list[Row]:
    """All of it, some three minutes; nothing else should run meanwhile."""
    catalogue = Catalogue(settings)
    return [*beside_engine(settings, runs, pairs), *fed.measure(catalogue.path_of(catalogue.default_for("text")))]


def beside_engine(settings: Settings, runs: int, pairs: int) -> list[Row]:
    """Interleaves the service and the engine alone."""
    catalogue = Catalogue(settings)
    entry = catalogue.default_for("text")
    model = catalogue.path_of(entry)
    text = replace(settings.text, context_tokens=CONTEXT_TOKENS)
    on = {"device": "cpu", "engine": ENGINE, "model": entry.id}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        more = {"text": {"slots": MANY, "threads": text.threads, "context_tokens": CONTEXT_TOKENS}}
        service = Service(Path(folder), {"large": model}, more)
        with service.running(), bare(ENGINE, entry, replace(settings, text=text), MANY) as alone:
            idle_bytes = resident_bytes(service.process.pid)
            client = Client(service.address, "large")
            sides = (alone, client)
            for side in sides:
                side.timed(TOKENS, 1)
            ones = [tuple(decode_rate(side.timed(TOKENS, 1)) for side in sides) for _ in range(runs)]
            firsts = [tuple(side.timed(2, 1)["first_s"] * 1000 for side in sides) for _ in range(pairs)]
            many = [tuple(_together(side.timed(MANY_TOKENS, MANY)) for side in sides) for _ in range(max(3, runs // 3))]
            health = _health_while(client, service.address)
            end_bytes = resident_bytes(service.process.pid)
        for name, found in (("decode", ones), (f"{MANY} streams", many)):
            ratio = statistics.median(served / bare_ for bare_, served in found)
            rows.append(row(f"{name} alone", [bare_ for bare_, _ in found], "tokens/s", **on))
            rows.append(row(f"{name} through the service", [s for _, s in found], "tokens/s", ratio=ratio, **on))
        rows.append(row("first token alone", [bare_ for bare_, _ in firsts], "ms", **on))
        rows.append(row("first token added", [served - bare_ for bare_, served in firsts], "ms", **on))
    return [
        *rows,
        row("health while generating, median", [statistics.median(health)], "ms"),
        row("health while generating, p99", [statistics.quantiles(health, n=100)[98]], "ms"),
        row("healthy after serve", service.starts_s, "s"),
        row("server memory, idle", [idle_bytes / 1e6], "MB"),
        row("server memory, after the runs", [end_bytes / 1e6], "MB"),
    ]


def _together(timed: Timed) -> float:
    return timed["tokens"] / timed["run_s"]


def _health_while(client: Client, address: str) -> list[float]:
    """Milliseconds of health calls while jobs generate one after the other."""
    enough = threading.Event()

    def generate() -> None:
        while not enough.is_set():
            client.timed(TOKENS, 1)

    busy = threading.Thread(target=generate)
    busy.start()
    http = HTTPConnection(address)
    times = []
    for _ in range(HEALTH_CALLS):
        start = time.perf_counter()
        http.request("GET", "/api/health")
        http.getresponse().read()
        times.append((time.perf_counter() - start) * 1000)
    enough.set()
    busy.join()
    return times
