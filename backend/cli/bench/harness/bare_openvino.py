"""OpenVINO GenAI without the service: a baseline of `bench text`, run as a separate process.

Same protocol as `bare_llama_cpp.py`. All streams use the library's continuous batching.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_BLOCKS = 256  # of 32 tokens


def main(model: str, threads: int) -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = _BLOCKS
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    for line in sys.stdin:
        answers.write(json.dumps(_timed(genai, pipeline, json.loads(line))) + "\n")
        answers.flush()


def _timed(genai: Any, pipeline: Any, request: dict[str, Any]) -> dict[str, float]:
    options = genai.GenerationConfig(max_new_tokens=request["max_tokens"], do_sample=False)
    start = time.perf_counter()
    tokenizer = pipeline.get_tokenizer()
    messages = [{"role": "user", "content": request["prompt"]}]
    prompt = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True)).input_ids
    streams = [pipeline.add_request(number, prompt, options) for number in range(int(request.get("streams", 1)))]
    times: list[float] = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for stream in streams:
            while stream.can_read():
                for output in stream.read().values():
                    times += [time.perf_counter()] * len(output.generated_ids)
    return {"first_s": times[0] - start, "run_s": times[-1] - start, "tokens": len(times)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
