"""`python -m tests.slow.llama_service FOLDER BUILD MODEL [PROGRAM [DEVICE]]`: a GGUF file on a card by the service.

BUILD is a folder with llama.cpp's shared libraries, MODEL the file; PROGRAM is `llama-server` of the same build. It
prints the card and its proof, the seconds from the first request to the first token with a cold worker, the receipt of
a job, the memory of the card, and tokens/s of 1, 4 and 16 streams by the service and by the program, in turns.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.service import Server, start_server
from tests.slow.llama_card import CONTEXT, SLOTS, STREAMS, TOKENS, card_bytes, opened_server, together

ROUNDS = 3
DEVICE = sys.argv[5] if len(sys.argv) > 5 else "cuda:0"
_NO_END = {"0": -100, "1": -100, "2": -100}  # the tokens that end a text in the vocabulary of SmolLM2


def stream(server: Server, model: str, prompt: str, tokens: int, **options: Any) -> tuple[float, float, int]:
    """Stream a completion; return the seconds to the first and to the last token, and the number of tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "device": DEVICE, **options}
    body |= {"logit_bias": _NO_END}
    body |= {"stream": True, "fallback": "never", "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(server.http.base_url.host, server.http.base_url.port or 80)
    start, times, count = time.perf_counter(), [], 0
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    for line in response:  # read as the script reads the other program: httpx costs several times as much
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        assert "error" not in chunk, chunk
        if any(choice["text"] for choice in chunk["choices"]):
            times.append(time.perf_counter())
        count = (chunk.get("usage") or {}).get("completion_tokens", count)
    assert times, (response.status, count)
    return times[0] - start, times[-1] - start, count


def show_card(server: Server) -> None:
    """Wait until all devices are probed and print the card."""
    started_at = time.monotonic()
    listed = server.http.get("/api/devices", params={"wait_s": 300}, timeout=400).json()["devices"]
    card = next(device for device in listed if device["id"] == DEVICE)
    proof = card["proof"] or {"checks": [], "seconds": 0}
    print(f"{card['name']}: {card['state']} after {time.monotonic() - started_at:.1f} s, {card['reason']}")
    print(f"  engines {card['engines']}, runtimes {card['runtimes']}, {card['versions']}")
    print(f"  {len(proof['checks'])} checks in {proof['seconds']:.2f} s")
    assert card["state"] == "ready", card["remedy"]


def show_job(server: Server, model: str, **options: Any) -> None:
    """Print the receipt of a job."""
    options = {"max_tokens": 8, **options}
    job = server.generate(model=model, prompt="Hello", device=DEVICE, fallback="never", options=options)
    receipt = job.get("receipt") or job
    keys = "used fell_back engine runtime hardware_id placement slots context_tokens memory times rate".split()
    print(json.dumps({key: receipt.get(key) for key in keys}, indent=1))


def main(folder: Path, build: str, model: Path, program: str | None = None) -> None:
    """Print all figures."""
    folder.mkdir(parents=True, exist_ok=True)
    config, name = folder / "config.json", "measured"
    settings = {
        "text": {"slots": SLOTS, "context_tokens": CONTEXT},
        "models": {name: {"path": str(model)}},
        **({"runtimes": {"llama-cuda": {"libraries": build}}} if build else {}),
    }
    config.write_text(json.dumps(settings))
    before = card_bytes() or 0
    server = start_server(folder, "--config", str(config))
    try:
        show_card(server)
        first_s, *_ = stream(server, name, "Hello", 1)
        print(f"cold worker: {first_s:.2f} s from the request to the first token")
        show_job(server, name)
        size = model.stat().st_size
        print(
            f"memory of the card: {((card_bytes() or 0) - before) / 1e6:.0f} MB; file {size / 1e6:.0f} MB", flush=True
        )
        with opened_server(program, str(model), DEVICE) as other:
            for streams in STREAMS:
                ours: list[float] = []
                theirs: list[float] = []
                for _ in range(ROUNDS):
                    ours.append(together(lambda prompt: stream(server, name, prompt, TOKENS), streams)[0])
                    if other:
                        theirs.append(together(other.run, streams)[0])
                middle, yardstick = statistics.median(ours), statistics.median(theirs or [0])
                ratio = f", llama-server {yardstick:.1f}, ratio {middle / yardstick:.3f}" if yardstick else ""
                print(f"{streams} streams: tokens/s service {middle:.1f}{ratio}", flush=True)
        print("With 8 layers on the card:")
        show_job(server, name, gpu_layers=8)
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:5])
