"""`bench overhead`: what the service costs over the engine alone: token rate, first token, health, start, memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backend.bench import direct
from backend.bench.rows import Row, resident_bytes, row
from backend.catalogue import Catalogue
from backend.children import environment
from backend.engines.llama_cpp import PROMPT_CHUNK_TOKENS
from backend.machine import usable_threads
from backend.settings import Settings

PROMPT = "Write a very long story about a river, a mill and a miller's daughter."
TOKENS = 128
HEALTH_CALLS = 1000


def measure(settings: Settings, runs: int, pairs: int) -> list[Row]:
    """Interleaves the service and the engine alone; nothing else should run meanwhile."""
    entry = Catalogue(settings).default_for("text")
    model = Catalogue(settings).path_of(entry)
    with tempfile.TemporaryDirectory() as folder:
        with _server(Path(folder), model) as (http, pid, healthy_s, idle_bytes), _direct(model, settings) as alone:
            for warm_up in (alone, http):
                warm_up.timed(TOKENS)
            rates: list[tuple[float, float]] = []
            for _ in range(runs):
                a, b = alone.timed(TOKENS), http.timed(TOKENS)
                rates.append((_rate(a), _rate(b)))
            firsts = [(alone.timed(2)["first_s"], http.timed(2)["first_s"]) for _ in range(pairs)]
            health = _health_while(http)
            peak = resident_bytes(pid)
    ratios = [b / a for a, b in rates]
    added = [(b - a) * 1000 for a, b in firsts]
    on = {"device": "cpu", "engine": "llama.cpp", "model": entry.id}
    return [
        row("decode alone", [a for a, _ in rates], "tokens/s", **on),
        row("decode through the service", [b for _, b in rates], "tokens/s", ratio=statistics.median(ratios), **on),
        row("first token alone", [a * 1000 for a, _ in firsts], "ms", **on),
        row("first token added", added, "ms", **on),
        row("health while generating, median", [statistics.median(health)], "ms"),
        row("health while generating, p99", [statistics.quantiles(health, n=100)[98]], "ms"),
        row("healthy after serve", [healthy_s], "s"),
        row("server memory, idle", [idle_bytes / 1e6], "MB"),
        row("server memory, after the runs", [peak / 1e6], "MB"),
    ]


class _Service:
    """The service as a client sees it, over one kept connection."""

    def __init__(self, url: str, model: str) -> None:
        self.address = urlsplit(url).netloc
        self._model = model
        self._http = HTTPConnection(self.address)

    def timed(self, tokens: int) -> dict[str, float]:
        """Runs the prompt; times of the first and last token event as they arrive, which may carry several tokens."""
        options = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        body = {"model": self._model, "device": "cpu", "prompt": PROMPT, "options": options, "stream": True}
        times: list[float] = []
        count = 0
        start = time.perf_counter()
        self._http.request("POST", "/api/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        while line := answer.readline():
            if line == b"event: token\n":
                times.append(time.perf_counter())
                count += json.loads(answer.readline().removeprefix(b"data: "))["count"]
        return {"first_s": times[0] - start, "run_s": times[-1] - start, "tokens": count}


class _Alone:
    """The engine alone, in `direct.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def timed(self, tokens: int) -> dict[str, float]:
        """Runs the prompt; times as the engine's callback sees them."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"prompt": PROMPT, "max_tokens": tokens}) + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def _server(folder: Path, model: Path) -> Iterator[tuple[_Service, int, float, int]]:
    config = folder / "config.yaml"
    settings = {"models": {"bench": {"path": str(model)}}, "storage": {"data_dir": str(folder / "data")}}
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "backend", "serve", "--port", "0", "--config", str(config)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        url = process.stdout.readline().split()[-1]
        http = HTTPConnection(urlsplit(url).netloc)
        http.request("GET", "/api/health")
        assert http.getresponse().read()
        healthy_s = time.perf_counter() - start
        http.request("GET", "/api/devices?wait_s=60")
        http.getresponse().read()
        yield _Service(url, "bench"), process.pid, healthy_s, resident_bytes(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _direct(model: Path, settings: Settings) -> Iterator[_Alone]:
    threads = settings.text.threads or usable_threads()
    numbers = [str(number) for number in (threads, settings.text.context_tokens, PROMPT_CHUNK_TOKENS)]
    process = subprocess.Popen(
        [sys.executable, "-I", direct.__file__, str(model), *numbers],
        env=environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield _Alone(process)
        process.kill()


def _health_while(service: _Service) -> list[float]:
    """Milliseconds of health calls while jobs generate one after the other."""
    enough = threading.Event()

    def generate() -> None:
        own = _Service(f"http://{service.address}", "bench")
        while not enough.is_set():
            own.timed(TOKENS)

    busy = threading.Thread(target=generate)
    busy.start()
    http = HTTPConnection(service.address)
    times = []
    for _ in range(HEALTH_CALLS):
        start = time.perf_counter()
        http.request("GET", "/api/health")
        http.getresponse().read()
        times.append((time.perf_counter() - start) * 1000)
    enough.set()
    busy.join()
    return times


def _rate(timed: dict[str, Any]) -> float:
    return float((timed["tokens"] - 1) / (timed["run_s"] - timed["first_s"]))
