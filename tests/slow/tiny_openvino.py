"""`python tests/slow/tiny_openvino.py`, in an environment with openvino and tokenizers: the engine openvino-genai.

A tiny graph with a state and random weights is written as optimum-intel would, loaded on the processor, and texts are
made alone and at the same time: they must be alike, and what reads them token by token must say what one pass says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from backend.common.errors import ContextLengthExceeded, ModelBroken, ModelIncompatible  # noqa: E402
from backend.engines import LoadRequest, RunRequest, load_engine  # noqa: E402
from tests.tiny_genai import write_tokenizer  # noqa: E402

SIZE, WIDTH, CONTEXT = 258, 32, 512
PROMPTS = ["a", "Tell me of rivers and mills. " * 5, "Why?", "b" * 150, "Ünïcödé"]
_PLAIN: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "top_p": 1, "top_k": 0, "stop": None, "raw": False}
_PLAIN |= {"logprobs": None, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": None}
_PLAIN |= {"tools": None, "response_format": None}


def write_model(folder: Path, stateful: bool = True) -> Path:
    """Embedding, one attention with learned positions and its keys and values as the state, and the way back."""
    import numpy as np
    import openvino
    from openvino import opset13 as op

    folder.mkdir(parents=True)
    random = np.random.default_rng(5)

    def weights(*shape: int) -> Any:
        return op.constant((random.standard_normal(shape) * 0.3).astype(np.float32))

    ids = op.parameter([-1, -1], np.int64, name="input_ids")
    mask = op.parameter([-1, -1], np.int64, name="attention_mask")
    places = op.parameter([-1, -1], np.int64, name="position_ids")
    beams = op.parameter([-1], np.int32, name="beam_idx")
    zero = op.constant(np.int64(0))
    states = op.add(op.gather(weights(SIZE, WIDTH), ids, zero), op.gather(weights(CONTEXT, WIDTH), places, zero))
    batch = op.gather(op.shape_of(ids), op.constant(np.array([0], np.int64)), zero)
    empty = op.broadcast(op.constant(np.float32(0)), op.concat([batch, op.constant(np.array([0, WIDTH], np.int64))], 0))
    sinks, kept = [], []
    for name in ("key", "value"):
        new = op.matmul(states, weights(WIDTH, WIDTH), False, False)
        if stateful:
            past = op.read_value(empty, name, openvino.Type.f32, openvino.PartialShape([-1, -1, WIDTH]))
            new = op.concat([op.gather(past, beams, zero), new], 1)
            sinks.append(op.assign(new, name))
        kept.append(new)
    queries = op.matmul(states, weights(WIDTH, WIDTH), False, False)
    scores = op.multiply(op.matmul(queries, kept[0], False, True), op.constant(np.float32(0.25)))
    total = op.gather(op.shape_of(mask), op.constant(np.int64(1)), zero)
    columns = op.range(zero, total, op.constant(np.int64(1)), "i64")
    allowed = op.less_equal(columns, op.unsqueeze(places, op.constant(np.int64(2))))
    shares = op.softmax(op.select(allowed, scores, op.constant(np.float32(-1e9))), 2)
    states = op.add(states, op.matmul(op.matmul(shares, kept[1], False, False), weights(WIDTH, WIDTH), False, False))
    logits = op.result(op.matmul(states, weights(WIDTH, SIZE), False, False), name="logits")
    model = openvino.Model([logits], sinks, [ids, mask, places, beams], "tiny")
    openvino.save_model(model, str(folder / "openvino_model.xml"))
    write_tokenizer(folder)
    sizes: dict[str, Any] = {"num_attention_heads": 1, "num_hidden_layers": 1, "hidden_size": WIDTH, "vocab_size": SIZE}
    sizes |= {"eos_token_id": 257, "max_position_embeddings": CONTEXT, "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


def said(session: Any, prompt: str, **options: Any) -> str:
    """What a model says."""
    texts: list[str] = []

    def emit(event: str, data: dict[str, Any]) -> bool:
        texts.extend([data["text"]] if event == "token" else [])
        return False

    session.run(RunRequest(None, prompt, {**_PLAIN, **options}, 1, False), emit)
    return "".join(texts)


def refusal(folder: Path) -> str:
    """Why a folder does not load."""
    try:
        load_engine("openvino-genai").load(LoadRequest("cpu", str(folder), 300, 1))
    except (ModelBroken, ModelIncompatible) as error:
        return error.detail
    return "it loads"


def main() -> int:
    """Prints what was seen; 1 if anything is not as it should be."""
    with tempfile.TemporaryDirectory() as home:
        folder = write_model(Path(home) / "tiny")
        session = load_engine("openvino-genai").load(LoadRequest("cpu", str(folder), 300, 2, 3))
        print(session.placement.evidence, session.versions)
        alone = [said(session, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            together = list(pool.map(lambda prompt: said(session, prompt), PROMPTS))
        chosen = said(session, "a", logit_bias={str(ord("q")): 100}, max_tokens=5)
        try:
            said(session, "x" * 300)
            long = "it fits"
        except ContextLengthExceeded as error:
            long = error.detail
        stateless = refusal(write_model(Path(home) / "stateless", stateful=False))
        (folder / "openvino_model.bin").write_bytes(b"short")
        cut = refusal(folder)
    print(
        f"{sum(one == other for one, other in zip(alone, together, strict=True))} of {len(PROMPTS)} texts alike", alone
    )
    print(chosen, "|", long, "|", stateless, "|", cut)
    right = alone == together and len(set(alone)) == len(alone) and chosen == "qqqqq" and "holds 300" in long
    return 0 if right and "no state" in stateless and "damaged" in cut else 1


if __name__ == "__main__":
    raise SystemExit(main())
