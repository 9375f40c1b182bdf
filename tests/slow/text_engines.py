"""`python -m tests.slow.text_engines DATA_DIR`: compare the engines' greedy texts of the default model.

In the data folder are the model, the runtimes `torch` and `openvino` as they are installed, and its forms: `models
convert ID --to openvino | onnx-int8`. The service runs on it; each engine answers eight prompts on the processor, alone
and four at once. It prints how far the engines say the same, and each one's receipt.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backend.child.convert.comparison import PROMPTS, TOKENS, Answer, compare
from tests.service import Server, start_server

MODEL = "smollm2-135m-instruct"
WANTED = {"llama.cpp", "onnx-genai", "openvino-genai", "transformers"}


def main(data_dir: Path) -> int:
    """1 if an engine fails or is missing. In bfloat16 and int4 a text among others may differ from the text alone:
    kernels for several rows round elsewhere.
    """
    failed, said = 0, {}
    with tempfile.TemporaryDirectory() as home:
        config = Path(home) / "config.json"
        config.write_text(json.dumps({"text": {"slots": 4, "context_tokens": 1024}}))
        server = start_server(data_dir.absolute(), "--config", str(config))
        try:
            devices = server.http.get("/api/devices", params={"wait_s": 120}).json()["devices"]
            device = next(one for one in devices if one["id"] == "cpu")
            model = next(one for one in server.http.get("/api/models").json()["models"] if one["id"] == MODEL)
            for engine in (name for name in model["engines"] if name in device["engines"]):
                said[engine] = [words(server, engine, prompt) for prompt in PROMPTS]
                with ThreadPoolExecutor(4) as pool:
                    together = list(pool.map(lambda prompt, engine=engine: job(server, engine, prompt), PROMPTS))
                failed += sum(one["status"] != "done" for one in together)
                pairs = zip(together, said[engine], strict=True)
                alike = sum(one["output"]["text"] == alone["text"] for one, alone in pairs)
                receipt = together[-1]["receipt"]
                print(f"{engine}: {alike} of {len(PROMPTS)} texts alike among others", flush=True)
                print(f"  {receipt['placement']['evidence']}\n  {receipt['versions']} {receipt['memory']}", flush=True)
        finally:
            server.stop()
    for one, other in itertools.combinations(said, 2):
        counts = compare(said[one], said[other])
        print(f"{one} and {other}: { {name: value for name, value in counts.items() if isinstance(value, int)} }")
    missing = WANTED - said.keys()
    print(f"missing: {', '.join(sorted(missing)) or 'none'}")
    return 1 if failed or missing else 0


def job(server: Server, engine: str, prompt: str) -> dict[str, Any]:
    """One greedy text."""
    options = {"temperature": 0, "max_tokens": TOKENS}
    return server.generate(model=MODEL, engine=engine, device="cpu", fallback="never", prompt=prompt, options=options)


def words(server: Server, engine: str, prompt: str) -> Answer:
    """The same in tokens."""
    options = {"temperature": 0, "max_tokens": TOKENS, "logprobs": 0}
    body = {"model": MODEL, "engine": engine, "device": "cpu", "prompt": prompt, "options": options, "stream": True}
    tokens: list[str] = []
    prompt_tokens = 0
    with server.http.stream("POST", "/api/generate", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = json.loads(line[6:])
                tokens += [token["token"] for token in data.get("logprobs") or ()]
                prompt_tokens = ((data.get("receipt") or {}).get("counts") or {}).get("prompt_tokens", prompt_tokens)
    return {"text": "".join(tokens), "tokens": tokens, "prompt_tokens": prompt_tokens}


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
