"""transformers without the service: a baseline of `bench text`, run as a separate process.

Same protocol as `bare_llama_cpp.py`. Several streams run as one batch of the library: they start and end together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(model: str, threads: int) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import transformers

    torch.set_num_threads(threads)
    path = Path(model)
    here = {"gguf_file": path.name} if path.is_file() else {}
    folder = str(path.parent if path.is_file() else path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **here)
    number = torch.bfloat16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else torch.float32
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=number, **here).eval()
    for line in sys.stdin:
        answers.write(json.dumps(_timed(torch, loaded, tokenizer, json.loads(line))) + "\n")
        answers.flush()


class _Times:
    """The streamer of `generate`, called with each step's tokens. The first call has the prompt."""

    def __init__(self) -> None:
        self.tokens: list[float] = []
        self._has_prompt = False

    def put(self, value: Any) -> None:
        """Record the arrival of one token per stream."""
        if self._has_prompt:
            self.tokens += [time.perf_counter()] * value.numel()
        self._has_prompt = True

    def end(self) -> None:
        """Called by the library at the end. No-op."""


def _timed(torch: Any, model: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, float]:
    times = _Times()
    start = time.perf_counter()
    messages = [{"role": "user", "content": request["prompt"]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer([text] * int(request.get("streams", 1)), return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        model.generate(**prompt, do_sample=False, max_new_tokens=request["max_tokens"], streamer=times)
    return {"first_s": times.tokens[0] - start, "run_s": times.tokens[-1] - start, "tokens": len(times.tokens)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
