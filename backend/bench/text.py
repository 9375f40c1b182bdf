"""`bench text`: each engine of the default text model through the service against its bare library, in one run.

Alone, first token, four streams; the order of engines and of both sides turns with every round, so that a machine whose
speed changes changes it for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from backend.bench import direct, direct_genai
from backend.bench.rows import Row, row
from backend.bench.served import Service
from backend.catalogue import Catalogue, Entry
from backend.children import environment
from backend.engines import engines, serves
from backend.engines.llama_cpp import PROMPT_CHUNK_TOKENS
from backend.errors import Validation
from backend.machine import usable_threads
from backend.settings import Settings

PROMPT = "Write a very long story about a river, a mill and a miller's daughter."
TOKENS, STREAMS = 128, 4
_COLUMNS = {"alone": "tokens/s", "first token": "ms", "4 streams": "tokens/s"}
Figures = dict[str, list[float]]
Timed = dict[str, float]


def measure(settings: Settings, runs: int) -> list[Row]:
    """The three columns for each engine. Nothing else should run meanwhile."""
    entry = Catalogue(settings).default_for("text")
    Catalogue(settings).path_of(entry)
    names = of_base(entry)
    sides = [(engine, side) for engine in names for side in ("bare", "service")]
    found: dict[tuple[str, str], Figures] = {which: {column: [] for column in _COLUMNS} for which in sides}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        libraries = {name: stack.enter_context(bare(name, entry, settings, STREAMS)) for name in names}
        paths = {name.replace(".", "-"): entry.path_for(name) for name in names}
        service = Service(Path(folder), paths, {"text": {"slots": STREAMS, "threads": settings.text.threads}})
        stack.enter_context(service.running())
        timers = {(name, "bare"): libraries[name].timed for name in names}
        timers |= {(name, "service"): Client(service.address, name.replace(".", "-")).timed for name in names}
        for timed in timers.values():
            timed(8, 1)
        for number in range(runs):
            turn = number % len(sides)
            for which in sides[turn:] + sides[:turn]:
                _take(found[which], timers[which])
    return _rows(entry, names, found)


def of_base(entry: Entry) -> list[str]:
    """The engines of a model that `.venv` has, where their bare libraries are as well."""
    return [name for name in entry.engines if serves(engines()[name], "base")]


def _take(figures: Figures, timed: Any) -> None:
    alone, four = timed(TOKENS, 1), timed(TOKENS, STREAMS)
    figures["alone"].append(decode_rate(alone))
    figures["first token"].append(alone["first_s"] * 1000)
    figures["4 streams"].append(four["tokens"] / four["run_s"])


def decode_rate(timed: Timed) -> float:
    """Tokens a second after the first one, of a single stream."""
    return (timed["tokens"] - 1) / (timed["run_s"] - timed["first_s"])


def _rows(entry: Entry, names: list[str], found: dict[tuple[str, str], Figures]) -> list[Row]:
    """A row each; ratios above 1 are better than the bare library, also for times."""
    rows = []
    for column, unit in _COLUMNS.items():
        slower = unit == "ms"
        for engine in names:
            on = {"device": "cpu", "engine": engine, "model": entry.id}
            bare, served = found[engine, "bare"][column], found[engine, "service"][column]
            pairs = [b / s if slower else s / b for b, s in zip(bare, served, strict=True)]
            rows.append(row(f"{engine}, bare: {column}", bare, unit, **on))
            rows.append(row(f"{engine}: {column}", served, unit, ratio=statistics.median(pairs), **on))
        medians = {
            side: [statistics.median(found[engine, side][column]) for engine in names] for side in ("bare", "service")
        }
        best = {side: min(values) if slower else max(values) for side, values in medians.items()}
        ratio = best["bare"] / best["service"] if slower else best["service"] / best["bare"]
        rows.append(row(f"best engine: {column}", [best["service"]], unit, ratio=ratio, device="cpu", model=entry.id))
    return rows


class Bare:
    """A bare library, in `direct.py` or `direct_genai.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def timed(self, tokens: int, streams: int) -> Timed:
        """Runs the prompt; times as the library's caller sees them."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"prompt": PROMPT, "max_tokens": tokens, "streams": streams}) + "\n")
        self._process.stdin.flush()
        found: Timed = json.loads(self._process.stdout.readline())
        return found


class Client:
    """The service as a client sees it; each stream has a connection of its own."""

    def __init__(self, address: str, model: str) -> None:
        self._address = address
        self._model = model

    def timed(self, tokens: int, streams: int) -> Timed:
        """Runs the prompt in that many streams; a token event may carry several tokens."""
        options = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        body = json.dumps({"model": self._model, "device": "cpu", "prompt": PROMPT, "options": options, "stream": True})
        times: list[float] = []
        counts: list[int] = []

        def stream(http: HTTPConnection) -> None:
            http.request("POST", "/api/generate", body, {"Content-Type": "application/json"})
            answer = http.getresponse()
            while line := answer.readline():
                if line == b"event: token\n":
                    times.append(time.perf_counter())
                    counts.append(json.loads(answer.readline().removeprefix(b"data: "))["count"])
            http.close()

        connections = [HTTPConnection(self._address) for _ in range(streams)]
        for connection in connections:  # the server closes those that rest, while the others are measured
            connection.connect()
        start = time.perf_counter()
        threads = [threading.Thread(target=stream, args=(http,)) for http in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"first_s": min(times) - start, "run_s": max(times) - start, "tokens": sum(counts)}


@contextlib.contextmanager
def bare(engine: str, entry: Entry, settings: Settings, slots: int) -> Iterator[Bare]:
    """The bare library of an engine, with the model loaded. Raises Validation for one that has no such program."""
    threads, context = settings.text.threads or usable_threads(), settings.text.context_tokens
    words = {
        "llama.cpp": [direct.__file__, threads, context, PROMPT_CHUNK_TOKENS, slots],
        "onnx-genai": [direct_genai.__file__, threads],
    }.get(engine)
    if words is None:
        raise Validation(f"There is no bare program for the engine {engine}.", "Measure a model of other engines.")
    program, *numbers = map(str, words)
    process = subprocess.Popen(
        [sys.executable, "-I", program, str(entry.path_for(engine)), *numbers],
        env=environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield Bare(process)
        finally:
            process.kill()
