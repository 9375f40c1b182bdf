"""`python -m tests.slow.random_gguf SHAPE TARGET SOURCE`: a GGUF file with random weights in the shape of a model.

SOURCE is a GGUF file whose vocabulary and chat template are kept; the vocabulary is filled up with unused tokens to the
shape's size. Weights are written as 4-bit blocks (Q4_K), the output layer as Q6_K, like the files that people download;
where the width is not a multiple of their 256 values, as Q4_0 and Q8_0.
Requires the packages `gguf` and `numpy`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KEPT = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template")
_SPREAD = 0.02  # standard deviation of the weights, as in trained models
_SEED = 1


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of the architecture `llama`."""

    layers: int
    width: int
    inner_width: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_width: int = 128

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return rows and columns of a layer's matrices."""
        across = self.kv_heads * self.head_width
        return {
            "attn_q": (self.heads * self.head_width, self.width),
            "attn_k": (across, self.width),
            "attn_v": (across, self.width),
            "attn_output": (self.width, self.heads * self.head_width),
            "ffn_gate": (self.inner_width, self.width),
            "ffn_up": (self.inner_width, self.width),
            "ffn_down": (self.width, self.inner_width),
        }


SHAPES = {
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 49152, 64),
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 128256, 64),
    "llama-3b": Shape(28, 3072, 8192, 24, 8, 128256),
    "llama-8b": Shape(32, 4096, 14336, 32, 8, 128256),
}


def main(name: str, target: Path, source: Path) -> None:
    """Write the file."""
    import gguf
    import numpy

    shape = SHAPES[name]
    fields = gguf.GGUFReader(source).fields
    writer = gguf.GGUFWriter(target, "llama")
    _write_header(writer, shape, {key: fields[key].contents() for key in fields if key.startswith("tokenizer.")})
    blocks = _Blocks(gguf, numpy)
    kinds = gguf.GGMLQuantizationType
    four, six = (kinds.Q4_0, kinds.Q8_0) if shape.width % 256 else (kinds.Q4_K, kinds.Q6_K)
    tensors: list[tuple[str, tuple[int, ...], Any]] = [
        ("token_embd.weight", (shape.vocabulary, shape.width), four),
        ("output.weight", (shape.vocabulary, shape.width), six),
        ("output_norm.weight", (shape.width,), None),
    ]
    for layer in range(shape.layers):
        tensors += [(f"blk.{layer}.{kind}_norm.weight", (shape.width,), None) for kind in ("attn", "ffn")]
        tensors += [(f"blk.{layer}.{part}.weight", size, four) for part, size in shape.matrices().items()]
    for tensor, size, kind in tensors:
        data = numpy.ones(size, numpy.float32) if kind is None else blocks.random(size, kind)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{target}: {target.stat().st_size / 1e9:.2f} GB")


def _write_header(writer: Any, shape: Shape, tokenizer: dict[str, Any]) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    for key in _KEPT:
        if key in tokenizer:
            writer.add_string(key, tokenizer[key])
    known = len(tokenizer["tokenizer.ggml.tokens"])
    unused = range(shape.vocabulary - known)
    writer.add_token_list([*tokenizer["tokenizer.ggml.tokens"], *(f"<unused{number}>" for number in unused)])
    writer.add_token_types([*tokenizer["tokenizer.ggml.token_type"], *(1 for _ in unused)])
    writer.add_token_merges(tokenizer["tokenizer.ggml.merges"])
    for key, value in tokenizer.items():
        if key.endswith("_token_id"):
            writer.add_uint32(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)


class _Blocks:
    """Random blocks of quantised weights. Each matrix starts elsewhere in one table, which is much faster than new
    random numbers for gigabytes."""

    def __init__(self, gguf: Any, numpy: Any) -> None:
        self._np, self._sizes = numpy, gguf.GGML_QUANT_SIZES
        self._random = numpy.random.default_rng(_SEED)
        kinds = gguf.GGMLQuantizationType
        self._tables = {
            kinds.Q4_0: self._scaled(18, _SPREAD / 4.6),
            kinds.Q8_0: self._scaled(34, _SPREAD / 74),
            kinds.Q4_K: self._four_bits(1 << 16),
            kinds.Q6_K: self._six_bits(1 << 16),
        }

    def random(self, size: tuple[int, ...], kind: Any) -> Any:
        """Return the bytes (rows, bytes of a row) of a matrix."""
        rows, columns = size
        per_block, _ = self._sizes[kind]
        table = self._tables[kind]
        blocks = rows * columns // per_block
        first = int(self._random.integers(len(table)))
        picked = table[(first + self._np.arange(blocks)) % len(table)]
        return picked.reshape(rows, -1)

    def _scaled(self, size: int, scale: float) -> Any:
        """Return blocks of Q4_0 or Q8_0: a scale in float16, then the values."""
        blocks = self._random.integers(0, 256, (1 << 16, size), self._np.uint8)
        blocks[:, :2] = self._np.array([scale], self._np.float16).view(self._np.uint8)
        return blocks

    def _four_bits(self, count: int) -> Any:
        """Return blocks of Q4_K: scale and offset in float16, then 6-bit scales, then 4-bit values."""
        blocks = self._random.integers(0, 256, (count, 144), self._np.uint8)
        scale = _SPREAD / 200  # a 6-bit scale is 32 on average, and a 4-bit value spreads by 4.6
        blocks[:, :4] = self._np.array([scale, scale * 7.5], self._np.float16).view(self._np.uint8)
        return blocks

    def _six_bits(self, count: int) -> Any:
        """Return blocks of Q6_K: 6-bit values, then signed 8-bit scales, then the scale in float16."""
        blocks = self._random.integers(0, 256, (count, 210), self._np.uint8)
        blocks[:, 208:] = self._np.array([_SPREAD / 1360], self._np.float16).view(self._np.uint8)
        return blocks


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
