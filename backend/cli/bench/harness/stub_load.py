"""`bench overhead` under many streams: the service alone, with stub workers instead of engines.

Run as a program, this module is the server. `measure` starts it and reads its streams in another process, so that
neither delays the health requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from backend.cli.bench.harness import stream_readers, stub_worker
from backend.cli.bench.harness.isolated_server import work
from backend.common.system.resources import process_cpu_s
from backend.manager.benchmarks.rows import Row, resident_bytes, row

STREAMS, TOKENS_A_SECOND = 64, 2000
FEW_STREAMS, FEW_TOKENS_A_SECOND = 16, 128  # the rate of the default model on two cores
SECONDS, HEALTH_EACH_S = 20.0, 0.02
JOBS, AT_ONCE, JOB_PACE = 10_000, 16, 1000.0
ROOT = Path(__file__).parents[4]


def measure(model: Path) -> list[Row]:
    """Measure health latency under many streams, the server's processor time per token, and memory after many jobs."""
    few = streams(model, FEW_STREAMS, FEW_TOKENS_A_SECOND)
    return [*streams(model, STREAMS, TOKENS_A_SECOND), *few, *jobs(model)]


def streams(model: Path, count: int, tokens_a_second: int) -> list[Row]:
    """Measure health latency and processor time per token while all streams are active."""
    pace = tokens_a_second / count
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder), model, pace) as (address, pid):
        words = [sys.executable, stream_readers.__file__, address, str(count), str(SECONDS)]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdout
            if not reading.stdout.readline():  # all streams have started
                raise RuntimeError("The streams did not start; the reader's message is above.")
            before_s, began = process_cpu_s(pid) or 0.0, time.perf_counter()
            times = _health(address)
            spent_s, wall_s = (process_cpu_s(pid) or 0.0) - before_s, time.perf_counter() - began
            found = json.loads(reading.stdout.readline())
        size = resident_bytes(pid)
    name = f"{count} streams of a stand-in"
    return [
        row(f"{name}, tokens that arrived", [found["tokens"] / found["seconds"]], "tokens/s"),
        row(f"{name}, events that carried them", [found["events"] / found["seconds"]], "events/s"),
        row(f"{name}, health, median", [statistics.median(times)], "ms"),
        row(f"{name}, health, p99", [statistics.quantiles(times, n=100)[98]], "ms"),
        row(f"{name}, server's processor", [spent_s / wall_s], "cores"),
        row(f"{name}, server's processor for a token", [spent_s / wall_s / tokens_a_second * 1e6], "µs"),
        row(f"{name}, server memory", [size / 1e6], "MB"),
    ]


def jobs(model: Path) -> list[Row]:
    """Measure the server's memory after many short jobs of waiting clients."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder), model, JOB_PACE) as (address, pid):
        began = time.perf_counter()
        work(address, {"prompt": "Go on.", "options": {"max_tokens": 4}}, JOBS, AT_ONCE)
        spent_s, size = time.perf_counter() - began, resident_bytes(pid)
    return [
        row(f"server memory after {JOBS} jobs of a stand-in", [size / 1e6], "MB"),
        row("jobs a second of a stand-in", [JOBS / spent_s], "jobs/s"),
    ]


def _health(address: str) -> list[float]:
    """Return the latency of requests on one connection, in milliseconds."""
    times = []
    end = time.perf_counter() + SECONDS
    with contextlib.closing(HTTPConnection(address, timeout=60)) as http:
        while time.perf_counter() < end:
            start = time.perf_counter()
            http.request("GET", "/api/health")
            http.getresponse().read()
            times.append((time.perf_counter() - start) * 1000)
            time.sleep(HEALTH_EACH_S)
    return times


@contextlib.contextmanager
def _server(folder: Path, model: Path, pace: float) -> Iterator[tuple[str, int]]:
    config = folder / "config.yaml"
    content = {
        "models": {"bench": {"path": str(model), "engine": "llama.cpp"}},
        "default_models": {"text": "bench"},
        "storage": {"data_dir": str(folder / "data")},
        "text": {"slots": STREAMS},
        "server": {"port": 0, "follower_limit": 2 * STREAMS},
    }
    config.write_text(json.dumps(content))
    words = [sys.executable, "-m", "backend.cli.bench.harness.stub_load", str(config), str(pace)]
    out, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=none, text=True) as process:
        try:
            assert process.stdout
            address = urlsplit(process.stdout.readline().split()[-1]).netloc
            with contextlib.closing(HTTPConnection(address)) as http:
                http.request("GET", "/api/devices?wait_s=60")
                http.getresponse().read()
            yield address, process.pid
        finally:
            process.terminate()


def main(config: str, pace: str) -> None:
    """Run the server with stub workers. Its probes are real."""
    from backend.child import handle
    from backend.common.config.settings import load_settings
    from backend.server.process import serve

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        if arguments[0] != "run":
            return handle.spawn(python, arguments)
        pipe = subprocess.PIPE
        words = [python, "-I", stub_worker.__file__, pace]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    asyncio.run(serve(load_settings({"config": config}), say, spawn=spawn))


if __name__ == "__main__":
    main(*sys.argv[1:])
