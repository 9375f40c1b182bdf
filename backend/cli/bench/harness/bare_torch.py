"""Text on torch without the service: a baseline and the engine itself, run in a runtime with torch.

Models have random weights in the shape of known ones: speed does not depend on values. Prints one JSON line per figure:
`generate` of transformers, then the engine with each way to compute a decode step, with one and with many streams.
`PYTHON -I bare_torch.py DEVICE SHAPE STREAMS RUNS CACHE OPTIONS [WAY …]`: CACHE is the folder for compiled kernels,
OPTIONS are all text options as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TypedDict

sys.path.insert(0, str(Path(__file__).parents[4]))

from backend.common.engine_api import EventData  # noqa: E402
from backend.common.types import JsonObject  # noqa: E402
from backend.devices import show_all_devices, torch_place  # noqa: E402
from backend.engines import LoadRequest, RunRequest, load_engine  # noqa: E402
from backend.engines._torch.cuda_graphs import COMPILED, RECORDED, SINGLY  # noqa: E402

_LLAMA: JsonObject = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192}
engine: Any = load_engine("transformers")
SHAPES: dict[str, JsonObject] = {
    "smollm2-135m": {
        **_LLAMA,
        **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "head_dim": 64},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    },
    "llama-8b": {
        **_LLAMA,
        **{"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False},
    },
    "tiny": {
        **_LLAMA,
        **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    },
}
PROMPT = "Write a very long story about a river and a mill."
TOKENS, CONTEXT_TOKENS, THREADS = 400, 1024, 8
COMPILE_LIMIT_S = 240


class _Figure(TypedDict):
    metric: str
    value: float
    unit: str


class Figure(_Figure, total=False):
    """A printed figure. Optional: the lowest and highest value of the runs."""

    low: float
    high: float


class Timing(TypedDict):
    """The times and tokens of concurrent texts, and how the first one was computed."""

    first_s: float
    run_s: float
    tokens: int
    said: str


def main(device: str, shape: str, streams: int, runs: int, cache: str, options: JsonObject, ways: list[str]) -> None:
    """Measure one model shape on one device."""
    show_all_devices()
    import torch

    torch.manual_seed(1)
    engine._model = lambda source, place: made(source.folder, place)  # random weights, created on the device
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder) / shape, SHAPES[shape])
        place = torch_place(device)
        numbers = bare(place, Path(folder) / shape, runs)
        for way in ways:
            start = time.perf_counter()
            request = LoadRequest(
                device, str(Path(folder) / shape), CONTEXT_TOKENS, THREADS, streams, compile_cache_dir=cache
            )
            session: Any = engine.load(request, way)
            tell(f"{way}: ready after imports", time.perf_counter() - start, "s")
            measured(session, way, options, streams, runs, start)
            del session
        if place.access.can_record:
            bound(place, numbers)


def measured(session: Any, way: str, options: JsonObject, streams: int, runs: int, start: float) -> None:
    """Measure the engine with one way to compute a step: single stream, first token, many streams."""
    tell(f"{way}: first text's first token", timed(session, options, 1, 8)["first_s"] * 1000, "ms")
    for count in dict.fromkeys((1, streams)):
        said = ""
        while way == COMPILED and time.perf_counter() - start < COMPILE_LIMIT_S:
            said = timed(session, options, count, TOKENS)["said"]
            if session._decoder._model.compiler.gave_up:
                break
            if f"{RECORDED}." not in said and f"{RECORDED}," not in said and SINGLY not in said:
                tell(f"{way}: for {count} at once since the load began", time.perf_counter() - start, "s")
                break
        found = [timed(session, options, count, TOKENS) for _ in range(runs)]
        rates = [one["tokens"] / one["run_s"] for one in found]
        if count == 1:
            rates = [(one["tokens"] - 1) / (one["run_s"] - one["first_s"]) for one in found]
            tell(f"{way}: first token", statistics.median(one["first_s"] for one in found) * 1000, "ms")
        tell(f"{way}: {count} at once", statistics.median(rates), "tokens/s", low=min(rates), high=max(rates))
        print(json.dumps({"said": found[-1]["said"]}), flush=True)  # noqa: T201 (this program answers on stdout)


def timed(session: Any, options: JsonObject, streams: int, tokens: int) -> Timing:
    """Run concurrent texts, one thread each, as a worker runs its jobs."""
    firsts: list[float] = []
    ends: list[float] = []
    counts: list[int] = []
    said: list[str] = []
    begin = threading.Barrier(streams + 1)

    def one(number: int) -> None:
        first = 0.0

        def emit(event: str, data: EventData) -> bool:
            nonlocal first
            if event == "token" and not first:
                first = time.perf_counter()
            return False

        request = RunRequest(None, f"{PROMPT} {number}", {**options, "max_tokens": tokens}, 1, False)
        begin.wait()
        result = session.run(request, emit)
        ends.append(time.perf_counter())
        firsts.append(first)
        counts.append(result.counts["tokens"])
        said.append(result.evidence)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    begin.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return {"first_s": min(firsts) - start, "run_s": max(ends) - start, "tokens": sum(counts), "said": said[0]}


def bare(place: Any, folder: Path, runs: int) -> int:
    """Measure the library's `generate`, kernel by kernel; return the number of weights."""
    torch, model = place.torch, made(folder, place)
    model.set_attn_implementation("sdpa")
    ids = torch.randint(0, 256, (1, len(PROMPT)), device=place.device)
    rates = []
    for number in range(runs + 1):
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        out.tolist()
        if number:
            rates.append((out.shape[1] - len(PROMPT)) / (time.perf_counter() - start))
    tell("generate, alone", statistics.median(rates), "tokens/s", low=min(rates), high=max(rates))
    numbers = sum(int(one.numel()) for one in model.parameters())
    tell("weights", numbers / 1e6, "million")
    return numbers


def bound(place: Any, numbers: int) -> None:
    """Print the upper bound in tokens/s for one stream: measured memory bandwidth divided by the weights' size."""
    many = place.torch.empty(2**30, dtype=place.torch.int32, device=place.device)
    other = place.torch.empty_like(many)
    seconds = []
    for _ in range(5):
        place.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            other.copy_(many)
        place.synchronize()
        seconds.append((time.perf_counter() - start) / 10)
    moved = 2 * many.numel() * many.element_size() / min(seconds)
    tell("bandwidth of the memory", moved / 1e12, "TB/s")
    tell("bound by the memory, alone", moved / (2 * numbers), "tokens/s")


def tell(metric: str, value: float, unit: str, **spread: float) -> None:
    """Print one figure."""
    print(json.dumps({"metric": metric, "value": round(value, 3), "unit": unit, **spread}), flush=True)  # noqa: T201


def made(folder: Path, place: Any) -> Any:
    """Return a model with random weights on the device."""
    import transformers as library

    torch = place.torch
    number = getattr(torch, place.access.dtype)
    config = library.AutoConfig.from_pretrained(folder)
    torch.set_default_dtype(number)
    with torch.device(place.device):
        model = library.AutoModelForCausalLM.from_config(config, dtype=number)
    torch.set_default_dtype(torch.float32)
    if place.access.can_record:
        model.set_attn_implementation(engine.register(torch, library))
    return model.eval()


def write_folder(folder: Path, config: JsonObject) -> None:
    """Write a model folder without weights. The first tokens are bytes, the others unused words."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))  # letters for unprintable bytes, as GPT-2 maps them
    letters = [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]
    words = [*letters, *(f"Ġw{number}" for number in range(config["vocab_size"] - 256))]
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": levels, "decoder": levels, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        *(words[0], words[1], int(words[2]), int(words[3]), words[4], json.loads(words[5])),
        words[6:] or [SINGLY, RECORDED, COMPILED],
    )
