"""`python -m tests.slow.llama_card FOLDER BUILD MODEL [--device cuda:0] [--server PROGRAM] [--bench PROGRAM]`.

Loads a GGUF file through the engine `llama.cpp` on a card, with the shared libraries in the folder BUILD, and compares
it with the CPU. It prints: time from the start of a process to the first token; tokens/s with 1, 4 and 16 streams, also
of a loop that only calls the library (`bare`); the memory that is taken; how the next-token probabilities compare with
the processor's. With the program `llama-server` it prints the same figures of it, with the same sizes, in turns; the
output of `llama-batched-bench` is printed as it is. FOLDER is for temporary files.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SLOTS, CONTEXT, TOKENS, CHUNK = 16, 1024, 128, 512
STREAMS = (1, 4, 16)
ROUNDS = 3
PROMPTS = [f"Story {number}. Once upon a time in a village by a river there lived" for number in range(16)]
_FIRST = """
import sys, time
start = time.perf_counter()
sys.path.insert(0, sys.argv[1])
from tests.slow.llama_card import open_session, run, use_build
use_build(sys.argv[5])
session = open_session(*sys.argv[2:5], slots=4)
loaded = time.perf_counter()
run(session, "Hello", 1)
print(f"{loaded - start:.2f} {time.perf_counter() - start:.2f}")
"""
Figures = dict[str, list[float]]


def use_build(folder: str) -> None:
    """Let this process use the libraries in a folder, whatever its environment holds."""
    from backend.devices import _registry
    from backend.devices._mechanisms import ggml, llama_builds
    from backend.engines._llama import library

    build = llama_builds.build_in(Path(folder))
    assert build, f"{folder} has no library of llama.cpp"
    for module in (llama_builds, ggml, library, _registry):
        vars(module)["find_build"] = lambda: build


def open_session(device: str, model: str, folder: str, slots: int = SLOTS, checks: bool = False) -> Any:
    """Load a model through the engine. `checks`: also compare it with a copy on the processor."""
    from backend.devices import backends, mechanism, split_id
    from backend.engines import LoadRequest
    from backend.engines.llama_cpp import load

    backend, index = split_id(device)
    detected = None
    facts = backends()[backend]
    if device != "cpu":
        assert facts.ggml, f"llama.cpp does not reach {backend}"
        listed = mechanism(backend, facts.ggml.library).enumerate_devices(facts, facts.ggml.library)
        detected = listed[index]
    request = LoadRequest(
        device,
        model,
        CONTEXT,
        max(1, (os.cpu_count() or 2) // 2),
        slots,
        folder,
        detected_device=detected,
        check_bytes=10**12 if checks else 0,
    )
    return load(request)


def run(session: Any, prompt: str, tokens: int, **options: Any) -> tuple[float, float, int]:
    """Generate; return the seconds to the first and to the last token, and the number of tokens."""
    from backend.engines import RunRequest
    from backend.tasks.options import parse_options

    times: list[float] = []
    counts: list[int] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        if event == "token":
            times.append(time.perf_counter())
            counts.append(data["count"])
        return False

    start = time.perf_counter()
    chosen = {"temperature": 0.0, "raw": True, "max_tokens": tokens, **options}
    session.run(RunRequest(None, prompt, parse_options("text", chosen), 1, False), emit)
    return times[0] - start, times[-1] - start, sum(counts)


def together(one: Callable[[str], tuple[float, float, int]], streams: int) -> tuple[float, float]:
    """Run several streams at once. Returns tokens/s of all, and the mean seconds to the first token."""
    results: list[tuple[float, float, int]] = []

    def work(prompt: str) -> None:
        results.append(one(prompt))

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in PROMPTS[:streams]]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    assert len(results) == streams, "a stream failed"
    return sum(count for *_, count in results) / took, statistics.mean(first for first, *_ in results)


def without_end(session: Any) -> dict[str, Any]:
    """Return options that keep the model from ending its text."""
    return {"logit_bias": {str(token): -100.0 for token in session._vocabulary.ends}}


def bare(session: Any, streams: int) -> float:
    """Return tokens/s of a loop that only calls the library: a decode step and greedy sampling for each stream."""
    from backend.engines._llama.batch_model import Batch
    from backend.engines._llama.sampling import Chain

    model = session._decoder._model
    llama, context = model._llama, model._context
    options = {
        **{"temperature": 0.0, "logit_bias": None, "repetition_penalty": 1.0},
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0},
    }
    chain = Chain(llama, options, 1, [], (model._vocabulary_size, CONTEXT))
    llama.llama_memory_clear(model._memory, True)
    batch, ids = Batch(CHUNK, SLOTS), session._vocabulary.encode(PROMPTS[0])
    start = time.perf_counter()
    tokens = []
    for number in range(streams):
        for at in range(0, len(ids), model.prefill_chunk_tokens):
            batch.clear()
            batch.add(number, at, ids[at : at + model.prefill_chunk_tokens], True)
            assert llama.llama_decode(context, batch.struct) == 0
        tokens.append(llama.llama_sampler_sample(chain.handle, context, batch.count - 1))
    for step in range(TOKENS - 1):
        batch.set_step(list(range(streams)), tokens, [len(ids) + step] * streams)
        assert llama.llama_decode(context, batch.struct) == 0
        tokens = [llama.llama_sampler_sample(chain.handle, context, output) for output in range(streams)]
    took = time.perf_counter() - start
    llama.llama_memory_clear(model._memory, True)
    for slot in model._slots:
        slot.tokens = []
    return streams * TOKENS / took


def card_bytes() -> int | None:
    """Return the used bytes of the first card, as its driver lists them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return int(text.split()[0]) << 20 if text.split() else None


class LlamaServer:
    """The program llama-server with the same sizes."""

    def __init__(self, program: str, model: str, device: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        sizes = ["-c", str(CONTEXT * SLOTS), "-np", str(SLOTS), "-b", str(CHUNK), "-ub", str(CHUNK)]
        layers = ["-ngl", "0" if device == "cpu" else "999"]
        address = ["--host", "127.0.0.1", "--port", str(self._port), "--cache-ram", "0", "-fit", "off"]
        self._process = subprocess.Popen(
            [program, "-m", model, *sizes, *layers, *address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while self._process.poll() is None and not self._is_ready():
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        return False

    def run(self, prompt: str, temperature: float = 0.0) -> tuple[float, float, int]:
        """Generate; return the seconds to the first and to the last token, and the number of tokens."""
        body = {"prompt": prompt, "n_predict": TOKENS, "temperature": temperature, "stream": True, "ignore_eos": True}
        body |= {"cache_prompt": False, "top_k": 40, "top_p": 0.95, "min_p": 0.0, "seed": 1}
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        start, times = time.perf_counter(), []
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: ") and json.loads(line[6:]).get("content"):
                times.append(time.perf_counter())
        return times[0] - start, times[-1] - start, TOKENS

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def opened_server(program: str | None, model: str, device: str) -> Iterator[LlamaServer | None]:
    server = LlamaServer(program, model, device) if program else None
    try:
        yield server
    finally:
        if server:
            server.close()


def measure(session: Any, server: LlamaServer | None, rounds: int) -> None:
    """Print tokens/s of the engine, of the bare loop and of the server, in turns."""
    for temperature in (0.0, 0.8):
        for streams in STREAMS:
            sides = _sides(session, server, temperature, streams)
            figures: Figures = {name: [] for name in sides}
            for _ in range(rounds):
                for name, take in sides.items():
                    figures[name].append(take())
            middle = {name: statistics.median(values) for name, values in figures.items()}
            shown = ", ".join(f"{name} {value:.1f}" for name, value in middle.items())
            others = [name for name in middle if name != "engine"]
            ratios = ", ".join(f"{middle['engine'] / middle[name]:.3f} of {name}" for name in others)
            print(f"temperature {temperature}, {streams} streams: tokens/s {shown} ({ratios})", flush=True)


def _sides(
    session: Any, server: LlamaServer | None, temperature: float, streams: int
) -> dict[str, Callable[[], float]]:
    options = {**without_end(session), "temperature": temperature}
    sides: dict[str, Callable[[], float]] = {
        "engine": lambda: together(lambda prompt: run(session, prompt, TOKENS, **options), streams)[0]
    }
    if temperature == 0:
        sides["bare"] = lambda: bare(session, streams)
    if server:
        sides["llama-server"] = lambda: together(lambda prompt: server.run(prompt, temperature), streams)[0]
    return sides


def main(words: list[str]) -> int:
    """Print all figures."""
    parser = argparse.ArgumentParser()
    for name in ("folder", "build", "model"):
        parser.add_argument(name)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--server")
    parser.add_argument("--bench")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args(words)
    use_build(chosen.build)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cold", "again"):
        words = [sys.executable, "-c", _FIRST, str(ROOT), chosen.device, chosen.model, str(folder), chosen.build]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        print(f"{name} process: seconds to loaded and to the first token: {done.stdout.strip() or done.stderr[-2000:]}")
    before = card_bytes()
    start = time.perf_counter()
    session = open_session(chosen.device, chosen.model, str(folder), checks=True)
    print(f"loaded with a comparison in {time.perf_counter() - start:.1f} s; {session.versions}")
    print(session.placement)
    run(session, PROMPTS[0], 8)
    after = card_bytes()
    if before is not None and after is not None:
        size = Path(chosen.model).stat().st_size
        print(f"memory of the card: {(after - before) / 1e6:.0f} MB; file {size / 1e6:.0f} MB")
    with opened_server(chosen.server, chosen.model, chosen.device) as server:
        measure(session, server, 1 if chosen.quick else ROUNDS)
    if chosen.bench:
        sizes = ["-c", str(CONTEXT * SLOTS), "-npp", "16", "-ntg", str(TOKENS), "-npl", "1,4,16", "-ngl", "999"]
        subprocess.run([chosen.bench, "-m", chosen.model, *sizes], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
