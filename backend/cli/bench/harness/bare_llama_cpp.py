"""xllamacpp without the service: the baseline of `bench overhead` and `bench text`, run as a separate process.

Reads one JSON request a line on stdin, `{prompt, max_tokens, streams}`, and answers with `{first_s, run_s, tokens}`: of
several streams the first token of any, the time until the last of all, and all tokens.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def main(model: str, threads: int, context_tokens: int, batch_tokens: int, slots: int = 1) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = context_tokens * slots
    params.n_parallel = slots
    params.n_batch = params.n_ubatch = batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.fit_params = False
    params.cache_ram_mib = 0
    with tempfile.TemporaryDirectory() as folder:
        if sys.platform != "win32":
            params.hostnames = [str(Path(folder) / "s.sock")]
        server = xllamacpp.Server(params)
    for line in sys.stdin:
        answers.write(json.dumps(_timed(server, json.loads(line))) + "\n")
        answers.flush()


def _timed(server: Any, request: dict[str, Any]) -> dict[str, float]:
    times: list[float] = []

    def take(chunk: dict[str, Any]) -> None:
        for choice in chunk.get("choices", ()):
            if (choice.get("delta") or {}).get("content"):
                times.append(time.perf_counter())

    body = {
        "messages": [{"role": "user", "content": request["prompt"]}],
        "max_tokens": request["max_tokens"],
        "temperature": 0,
        "cache_prompt": False,
        "stream": True,
    }
    start = time.perf_counter()
    call = server.handle_chat_completions
    streams = [threading.Thread(target=call, args=(body, take)) for _ in range(int(request.get("streams", 1)))]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    return {"first_s": times[0] - start, "run_s": times[-1] - start, "tokens": len(times)}


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:6]))
