"""ONNX Runtime GenAI without the service: a baseline of `bench text`, run as a separate process.

Same protocol as `bare_llama_cpp.py`. Several streams run as one batch of the library: they start and end together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(model: str, threads: int) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import onnxruntime_genai as genai

    config = genai.Config(model)
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    loaded = genai.Model(config)
    tokenizer = genai.Tokenizer(loaded)
    for line in sys.stdin:
        answers.write(json.dumps(_timed(genai, loaded, tokenizer, json.loads(line))) + "\n")
        answers.flush()


def _timed(genai: Any, model: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, float]:
    import numpy

    streams = int(request.get("streams", 1))
    start = time.perf_counter()
    messages = json.dumps([{"role": "user", "content": request["prompt"]}])
    prompt = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    params = genai.GeneratorParams(model)
    params.set_search_options(
        do_sample=False, max_length=len(prompt) + request["max_tokens"], batch_size=streams, num_beams=1
    )
    generator = genai.Generator(model, params)
    generator.append_tokens(numpy.tile(prompt, (streams, 1)) if streams > 1 else prompt)
    writers = [tokenizer.create_stream() for _ in range(streams)]
    times: list[float] = []
    while not generator.is_done():
        generator.generate_next_token()
        for writer, token in zip(writers, generator.get_next_tokens(), strict=True):
            writer.decode(int(token))
            times.append(time.perf_counter())
    return {"first_s": times[0] - start, "run_s": times[-1] - start, "tokens": len(times)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
