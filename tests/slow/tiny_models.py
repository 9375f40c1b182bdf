"""`python tests/slow/tiny_models.py`, in an environment with torch and transformers: compare with `generate`.

Tiny models with random weights of several architectures, written as folders of safetensors, are loaded by the engine
`transformers` in float32. Each text, alone and with three others, must be that of the library's own `generate`.

`--device ID` computes on a card, with recorded steps, and with `--compiled` waits until they are compiled. Names of
architectures choose some of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from backend.devices import cpu  # noqa: E402
from backend.devices._mechanisms import torch_cuda  # noqa: E402
from backend.engines import LoadRequest, transformers  # noqa: E402
from backend.engines._text.batch_decoder import TextSequence  # noqa: E402
from backend.engines._torch.cuda_graphs import COMPILED, RECORDED, GraphBatchModel  # noqa: E402
from tests.tiny_genai import write_tokenizer  # noqa: E402

_SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_SIZES |= {"vocab_size": 258, "max_position_embeddings": 256, "initializer_range": 0.3, "pad_token_id": 257}
_SIZES |= {"bos_token_id": 256, "eos_token_id": 257}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_NEAR = {"sliding_window": 24}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
KINDS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 8},
    "mistral": {**_GROUPED, **_NEAR, "head_dim": 8},
    "gemma2": {**_GROUPED, **_NEAR, **_MIXED, "head_dim": 8, "tie_word_embeddings": False},
    "gemma3_text": {**_GROUPED, **_NEAR, **_MIXED, "head_dim": 8, "tie_word_embeddings": False},
    "phi": _SIZES,
    "phi3": _GROUPED,
    "gpt_neox": _SIZES,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "vocab_size": 258, "initializer_range": 0.3}
    | {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "sliding_window": None},
    "olmo2": _GROUPED,
}
PROMPTS = ["a", "Tell me of rivers and mills. " * 4, "Why?", "b" * 70]
TOKENS = 40
COMPILE_LIMIT_S = 120
_GREEDY: dict[str, Any] = {"temperature": 0, "top_p": 1, "top_k": 0, "logit_bias": None, "logprobs": None}
_GREEDY |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


def main(words: list[str]) -> int:
    """Prints a line a kind; 1 if any text differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args(words)
    failed = 0
    cpu._dtype = lambda torch: "float32"
    cuda: Any = torch_cuda
    cuda.preferred_dtype = lambda module: "float32"
    for kind in args.kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / kind
            try:
                expected = _made(kind, place)
                found, ways = _said(place, args.device, args.compiled)
                same = [one == other for one, other in zip(expected * 2, found, strict=True)]
                said = f"{sum(same)} of {len(same)} texts alike. {ways}"
                failed += not all(same)
            except Exception as error:  # noqa: BLE001 (each kind has its line)
                failed += 1
                said = f"FAILED: {type(error).__name__}: {error}"
            print(f"{kind:12} {said}", flush=True)
    return 1 if failed else 0


def _made(kind: str, place: Path) -> list[list[int]]:
    """Writes the model and gives what `generate` says to the prompts."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(kind, **KINDS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(place)
    write_tokenizer(place)
    if kind == "gemma2":
        model.set_attn_implementation("eager")
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([list(prompt.encode())])
        mask = torch.ones_like(ids)
        made = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=257)
        texts.append(made[0, ids.shape[1] :].tolist())
    return texts


def _said(place: Path, device: str, compiled: bool) -> tuple[list[list[int]], str]:
    """What the engine says, each alone and then all at once, and how its steps were computed."""
    request = LoadRequest(device, str(place), 256, 4, len(PROMPTS), compile_cache_dir=str(place.parent / "cache"))
    session: Any = transformers.load(request, COMPILED if compiled else RECORDED)
    rows: Any = session._decoder._model
    ways: Counter[str] = Counter()

    def one(prompt: str) -> list[int]:
        text = TextSequence(list(prompt.encode()), _GREEDY, 1, TOKENS, frozenset({257}))
        session._decoder.add(text)
        ids: list[int] = []
        while True:
            news = text.updates.get()
            if isinstance(news, Exception):
                raise news
            if not isinstance(news, int):
                ids += [step.sampled.token for step in news]
                if news[-1].finish:
                    ways.update(text.step_modes)
                    return ids

    if compiled and isinstance(rows, GraphBatchModel):
        end = time.monotonic() + COMPILE_LIMIT_S
        while ways.keys() != {COMPILED} and time.monotonic() < end and not rows.compiler.gave_up:
            ways.clear()
            with ThreadPoolExecutor(len(PROMPTS)) as pool:
                list(pool.map(one, [PROMPTS[0], *PROMPTS]))
        ways.clear()
    alone = [one(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = [*alone, *pool.map(one, PROMPTS)]
    return found, rows.describe_steps(ways) if isinstance(rows, GraphBatchModel) else ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
