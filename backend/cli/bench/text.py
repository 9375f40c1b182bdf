"""`bench text`: each engine of the default text model through the service, compared with its bare library.

Measures the decode rate of one stream, the latency of the first token, and the throughput of four streams. The order of
engines and sides rotates with each round, so that a change of the machine's speed affects all of them. A pause before
each measurement lets the previous one finish: spinning threads, database writes. Engines of installed runtimes take
part too.
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

from backend.child.handle import environment
from backend.cli.bench.harness import (
    bare_genai,
    bare_llama_cpp,
    bare_openvino,
    bare_transformers,
)
from backend.cli.bench.harness.isolated_server import Service
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.errors import RuntimeFailed
from backend.common.memory_plan.planner import BASE_TOKENS
from backend.common.system.resources import usable_threads
from backend.devices import backends
from backend.engines import engines
from backend.engines._llama.loaded_model import PROMPT_CHUNK_TOKENS
from backend.manager.benchmarks.rows import Row, row
from backend.models import Catalogue, Entry
from backend.runtimes.store import RUNTIMES, RuntimeStore
from backend.runtimes.user_environments import user_pythons
from backend.scheduling.load_size import open_number

PROMPT = "Write a very long story about a river, a mill and a miller's daughter."
TOKENS, STREAMS = 128, 4
_REST_S = 0.5
_SIDES = ("bare", "service")
_COLUMNS = {"alone": "tokens/s", "first token": "ms", "4 streams": "tokens/s"}
Figures = dict[str, list[float]]
Timed = dict[str, float]


def measure(settings: Settings, runs: int) -> list[Row]:
    """Measure the three columns for each engine. Run it on an idle machine."""
    entry = Catalogue(settings).default_for("text")
    Catalogue(settings).path_of(entry)
    pythons = interpreters(entry, settings)
    names = list(pythons)
    figures: dict[tuple[str, str], Figures] = {
        (engine, side): {column: [] for column in _COLUMNS} for engine in names for side in _SIDES
    }
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        libraries = {
            name: stack.enter_context(bare(name, entry, settings, STREAMS, python))
            for name, (_, python) in pythons.items()
        }
        paths = {name.replace(".", "-"): entry.path_for(name) for name in names}
        own = {runtime: {"python": python} for runtime, python in pythons.values() if runtime != "base"}
        text = {"slots": STREAMS, "threads": settings.text.threads}
        service = Service(Path(folder), paths, {"text": text, "runtimes": own})
        stack.enter_context(service.running())
        timers = {(name, "bare"): libraries[name].timed for name in names}
        timers |= {(name, "service"): Client(service.address, name.replace(".", "-"), name).timed for name in names}
        for timed in timers.values():
            timed(8, 1)
        for number in range(runs):
            for which in rotate(names, number):
                _take(figures[which], timers[which])
    return _rows(entry, names, figures)


def interpreters(entry: Entry, settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the model's engines that can run on the CPU now, each with its runtime and interpreter."""
    store, cpu = RuntimeStore(settings.data_dir / RUNTIMES), backends()["cpu"]
    named = user_pythons(settings)
    usable = {}
    for name in entry.engines:
        engine = engines()[name]
        usual = [runtime for runtime in engine.runtimes if runtime in cpu.runtimes] or list(engine.runtimes)
        pythons = {"base": sys.executable, **store.pythons(usual), **named}
        here = next((runtime for runtime in usual if runtime in pythons), None)
        if here and "cpu" in engine.backends:
            usable[name] = (here, pythons[here])
    return usable


def rotate(engines: list[str], number: int) -> list[tuple[str, str]]:
    """Return the order of a round: each round starts with another engine, and the sides alternate."""
    order = []
    for offset in range(len(engines)):
        engine = engines[(number + offset) % len(engines)]
        order += [(engine, side) for side in (_SIDES if number % 2 == 0 else _SIDES[::-1])]
    return order


def _take(figures: Figures, timed: Any) -> None:
    time.sleep(_REST_S)
    alone = timed(TOKENS, 1)
    time.sleep(_REST_S)
    four = timed(TOKENS, STREAMS)
    figures["alone"].append(decode_rate(alone))
    figures["first token"].append(alone["first_s"] * 1000)
    figures["4 streams"].append(four["tokens"] / four["run_s"])


def decode_rate(timed: Timed) -> float:
    """Return tokens/s of a single stream, without the first token."""
    return (timed["tokens"] - 1) / (timed["run_s"] - timed["first_s"])


def _rows(entry: Entry, names: list[str], figures: dict[tuple[str, str], Figures]) -> list[Row]:
    """Return the rows. A ratio above 1 is better than the bare library, also for times."""
    rows = []
    for column, unit in _COLUMNS.items():
        slower = unit == "ms"
        for engine in names:
            on = {"device": "cpu", "engine": engine, "model": entry.id}
            bare, served = figures[engine, "bare"][column], figures[engine, "service"][column]
            pairs = [b / s if slower else s / b for b, s in zip(bare, served, strict=True)]
            rows.append(row(f"{engine}, bare: {column}", bare, unit, **on))
            rows.append(row(f"{engine}: {column}", served, unit, ratio=statistics.median(pairs), **on))
        medians = {side: [statistics.median(figures[engine, side][column]) for engine in names] for side in _SIDES}
        best = {side: min(values) if slower else max(values) for side, values in medians.items()}
        ratio = best["bare"] / best["service"] if slower else best["service"] / best["bare"]
        rows.append(row(f"best engine: {column}", [best["service"]], unit, ratio=ratio, device="cpu", model=entry.id))
    return rows


class Bare:
    """A bare library, in one of the programs `harness/bare_….py`."""

    def __init__(self, process: subprocess.Popen[str], engine: str) -> None:
        self._process, self._engine = process, engine

    def timed(self, tokens: int, streams: int) -> Timed:
        """Run the prompt and return the times, as the library's caller sees them. Raises RuntimeFailed."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"prompt": PROMPT, "max_tokens": tokens, "streams": streams}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeFailed(
                f"The bare library of {self._engine} ended early with {self._process.wait()}.",
                f"Update its runtime, which may lack the library: {command('runtimes update NAME')}",
            )
        times: Timed = json.loads(line)
        return times


class Client:
    """The service as a client sees it, with one connection per stream."""

    def __init__(self, address: str, model: str, engine: str | None = None) -> None:
        self._address = address
        self._which = {"model": model, "device": "cpu", "fallback": "never", **({"engine": engine} if engine else {})}

    def timed(self, tokens: int, streams: int) -> Timed:
        """Run the prompt in concurrent streams. A token event may contain several tokens."""
        options = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        body = json.dumps({**self._which, "prompt": PROMPT, "options": options, "stream": True})
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
        for connection in connections:  # opened now, since the server closes idle connections
            connection.connect()
        start = time.perf_counter()
        threads = [threading.Thread(target=stream, args=(http,)) for http in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"first_s": min(times) - start, "run_s": max(times) - start, "tokens": sum(counts)}


@contextlib.contextmanager
def bare(engine: str, entry: Entry, settings: Settings, slots: int, python: str = sys.executable) -> Iterator[Bare]:
    """Yield an engine's bare library, with the model loaded. Raises RuntimeFailed for an engine without one."""
    threads = settings.text.threads or usable_threads()
    context = open_number(settings.text.context_tokens) or BASE_TOKENS
    words = {
        "llama.cpp": [bare_llama_cpp.__file__, threads, context, PROMPT_CHUNK_TOKENS, slots],
        "onnx-genai": [bare_genai.__file__, threads],
        "openvino-genai": [bare_openvino.__file__, threads],
        "transformers": [bare_transformers.__file__, threads],
    }.get(engine)
    if words is None:
        raise RuntimeFailed(f"The engine {engine} has no bare program.", "Measure a model of another engine.")
    program, *numbers = map(str, words)
    process = subprocess.Popen(
        [python, "-I", program, str(entry.path_for(engine)), *numbers],
        env=environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield Bare(process, engine)
        finally:
            process.kill()
