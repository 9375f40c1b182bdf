"""`bench overhead`: the cost of the service compared with the engine alone: rate, latency, health, start, memory.

With one and with several streams of a real engine, interleaved, and with many streams of a stub (`stub_load.py`).
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

from backend.cli.bench.harness import stub_load
from backend.cli.bench.harness.isolated_server import Service
from backend.cli.bench.text import Bare, Client, Timed, bare, decode_rate
from backend.common.config.settings import Settings
from backend.common.system.resources import usable_threads
from backend.manager.benchmarks.rows import Row, resident_bytes, row
from backend.models import Catalogue

ENGINE = "llama.cpp"
TOKENS, MANY, MANY_TOKENS = 128, 16, 48
CONTEXT_TOKENS = 512  # per stream, so that many streams fit in memory on both sides
HEALTH_CALLS = 1000


def measure(settings: Settings, runs: int, pairs: int) -> list[Row]:
    """Measure everything, in about four minutes. Run it on an idle machine."""
    catalogue = Catalogue(settings)
    threads = settings.text.threads or usable_threads()
    return [
        *beside_engine(settings, runs, pairs),
        *(with_a_core_left(settings, threads - 1) if threads > 1 else []),
        *stub_load.measure(catalogue.path_of(catalogue.default_for("text"))),
    ]


def beside_engine(settings: Settings, runs: int, pairs: int) -> list[Row]:
    """Measure the service and the engine alone, interleaved."""
    with _both(settings) as (alone, client, service):
        idle_bytes = resident_bytes(service.process.pid)
        for side in (alone, client):
            side.timed(TOKENS, 1)
        firsts = [tuple(side.timed(2, 1)["first_s"] * 1000 for side in (alone, client)) for _ in range(pairs)]
        rates = _rates(alone, client, runs, max(3, runs // 3))
        health = _health_while(client, service.address)
        end_bytes = resident_bytes(service.process.pid)
    return [
        *rates,
        row("first token alone", [bare_ for bare_, _ in firsts], "ms", device="cpu", engine=ENGINE),
        row("first token added", [served - bare_ for bare_, served in firsts], "ms", device="cpu", engine=ENGINE),
        row("health while generating, median", [statistics.median(health)], "ms"),
        row("health while generating, p99", [statistics.quantiles(health, n=100)[98]], "ms"),
        row("healthy after serve", service.starts_s, "s"),
        row("server memory, idle", [idle_bytes / 1e6], "MB"),
        row("server memory, after the runs", [end_bytes / 1e6], "MB"),
    ]


def with_a_core_left(settings: Settings, threads: int) -> list[Row]:
    """Measure with one engine thread less on both sides, so that the service has a core of the machine."""
    with _both(replace(settings, text=replace(settings.text, threads=threads))) as (alone, client, _):
        for side in (alone, client):
            side.timed(TOKENS, 1)
        return _rates(alone, client, 3, 3, f", a core left ({threads} of {threads + 1} threads)")


@contextlib.contextmanager
def _both(settings: Settings) -> Iterator[tuple[Bare, Client, Service]]:
    """Yield the engine alone and the service, with the same model, threads and slots."""
    catalogue = Catalogue(settings)
    entry = catalogue.default_for("text")
    settings = replace(settings, text=replace(settings.text, context_tokens=CONTEXT_TOKENS))
    text = {"slots": MANY, "threads": settings.text.threads, "context_tokens": CONTEXT_TOKENS}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), {"large": catalogue.path_of(entry)}, {"text": text})
        with service.running(), bare(ENGINE, entry, settings, MANY) as alone:
            yield alone, Client(service.address, "large", ENGINE), service


def _rates(alone: Bare, client: Client, runs: int, rounds: int, note: str = "") -> list[Row]:
    """Measure tokens/s of one stream and of many, interleaved."""
    sides = (alone, client)
    ones = [tuple(decode_rate(side.timed(TOKENS, 1)) for side in sides) for _ in range(runs)]
    many = [tuple(_together(side.timed(MANY_TOKENS, MANY)) for side in sides) for _ in range(rounds)]
    on = {"device": "cpu", "engine": ENGINE}
    rows = []
    for name, pairs in (("decode", ones), (f"{MANY} streams", many)):
        ratio = statistics.median(served / bare_ for bare_, served in pairs)
        rows.append(row(f"{name} alone{note}", [bare_ for bare_, _ in pairs], "tokens/s", **on))
        rows.append(row(f"{name} through the service{note}", [s for _, s in pairs], "tokens/s", ratio=ratio, **on))
    return rows


def _together(timed: Timed) -> float:
    return timed["tokens"] / timed["run_s"]


def _health_while(client: Client, address: str) -> list[float]:
    """Return the latency of health requests in milliseconds while jobs generate."""
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
