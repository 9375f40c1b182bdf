"""`python -m tests.slow.small_gguf FOLDER`: small GGUF files of several architectures with random weights.

They are those of tests/cases/gguf: a dense model, one with sliding windows and one with experts, with the vocabulary of
tiny_no_template.gguf. Requires the packages `gguf` and `numpy`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "cases" / "gguf" / "tiny_no_template.gguf"
_WIDTH, _INNER, _HEADS, _KEY_HEADS, _HEAD = 64, 64, 2, 1, 32
_EXPERTS, _EXPERT_INNER = 4, 32
_SIZES = {
    "context_length": 8192,
    "embedding_length": _WIDTH,
    "feed_forward_length": _INNER,
    "attention.head_count": _HEADS,
    "attention.head_count_kv": _KEY_HEADS,
    "attention.key_length": _HEAD,
    "attention.value_length": _HEAD,
    "rope.dimension_count": _HEAD,
}
_WINDOW = {"attention.sliding_window": 512}
_MIXTURE = {"expert_count": _EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": _EXPERT_INNER}
# Name of the file, architecture, layers and further sizes.
MODELS: tuple[tuple[str, str, int, dict[str, int]], ...] = (
    ("small_dense", "llama", 4, {}),
    ("small_windowed", "gemma3", 6, _WINDOW),
    ("small_mixture", "qwen3moe", 3, _MIXTURE),
)


def main(folder: Path) -> None:
    """Write the files."""
    import gguf
    import numpy

    random = numpy.random.default_rng(1)
    fields = gguf.GGUFReader(SOURCE).fields
    tokenizer = {key: fields[key].contents() for key in fields if key.startswith("tokenizer.")}
    for name, architecture, layers, sizes in MODELS:
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture)
        for key, size in {**_SIZES, **sizes, "block_count": layers}.items():
            writer.add_uint32(f"{architecture}.{key}", size)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        _add_tokenizer(writer, tokenizer)
        for tensor, shape in _tensors(architecture, layers, len(tokenizer["tokenizer.ggml.tokens"])).items():
            data = (random.standard_normal(shape) * 0.05).astype(numpy.float32)
            if len(shape) > 1 and "gate_inp" not in tensor:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(tensor, gguf.quants.quantize(data, kind), raw_dtype=kind)
            else:
                writer.add_tensor(tensor, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any]) -> None:
    lists = {
        "tokenizer.ggml.tokens": writer.add_token_list,
        "tokenizer.ggml.token_type": writer.add_token_types,
        "tokenizer.ggml.scores": writer.add_token_scores,
        "tokenizer.ggml.merges": writer.add_token_merges,
    }
    for key, value in tokenizer.items():
        if key in lists:
            lists[key](value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)


def _tensors(architecture: str, layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors, as NumPy has them."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, _WIDTH), "output_norm.weight": (_WIDTH,)}
    if architecture != "gemma3":
        shapes["output.weight"] = (vocabulary, _WIDTH)
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in _layer(architecture).items()}
    return shapes


def _layer(architecture: str) -> dict[str, tuple[int, ...]]:
    queries, keys = _HEADS * _HEAD, _KEY_HEADS * _HEAD
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm": (_WIDTH,),
        "attn_q": (queries, _WIDTH),
        "attn_k": (keys, _WIDTH),
        "attn_v": (keys, _WIDTH),
        "attn_output": (_WIDTH, queries),
        "ffn_norm": (_WIDTH,),
    }
    if architecture != "llama":
        parts |= {"attn_q_norm": (_HEAD,), "attn_k_norm": (_HEAD,)}
    if architecture == "gemma3":
        parts |= {"post_attention_norm": (_WIDTH,), "post_ffw_norm": (_WIDTH,)}
    if architecture == "qwen3moe":
        inner = {"gate": (_EXPERT_INNER, _WIDTH), "up": (_EXPERT_INNER, _WIDTH), "down": (_WIDTH, _EXPERT_INNER)}
        return {
            **parts,
            "ffn_gate_inp": (_EXPERTS, _WIDTH),
            **{f"ffn_{part}_exps": (_EXPERTS, *shape) for part, shape in inner.items()},
        }
    return {**parts, "ffn_gate": (_INNER, _WIDTH), "ffn_up": (_INNER, _WIDTH), "ffn_down": (_WIDTH, _INNER)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
