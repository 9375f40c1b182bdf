"""transformers with nothing between: a yardstick of `bench text`, run as a program of its own.

The same lines in and out as `direct.py`. Several streams are the library's own batch: they begin and end together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(model: str, threads: int) -> None:
    """Serves requests until stdin ends."""
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
    """What `generate` calls for each step's tokens; the first call is for the prompt."""

    def __init__(self) -> None:
        self.tokens: list[float] = []
        self._begun = False

    def put(self, value: Any) -> None:
        """Tokens of each stream."""
        if self._begun:
            self.tokens += [time.perf_counter()] * value.numel()
        self._begun = True

    def end(self) -> None:
        """The library says that it is done."""


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
