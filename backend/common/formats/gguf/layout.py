"""The memory layout of a GGUF model: bytes of weights by layer, and what each layer caches for a token.

Rules of llama.cpp (src/llama-model.cpp): `token_embd` stays in system memory, all other tensors outside the layers
belong to the output layer, and a model without `output.weight` uses a copy of `token_embd` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.common.formats.gguf.attention import Attention

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
_EXPERTS = re.compile(r"\.ffn_(?:up|down|gate|gate_up)_(?:ch)?exps\.")  # what `--cpu-moe` moves to system memory
_INPUT = ("token_embd.weight", "token_types.weight", "position_embd.weight", "per_layer_token_embd.weight")
_OUTPUT = "output.weight"
_MOST_LAYERS = 4096
_PADDING = 32  # bytes; ggml aligns each tensor in a buffer


@dataclass(frozen=True)
class LayerMemory:
    """The memory of one layer.

    `expert_bytes` is a part of `weight_bytes`; `largest_bytes` and `largest_expert_bytes` are those of one tensor.
    `key_width` and `value_width` are the cached numbers per token. `window_tokens`: optional, tokens that
    sliding-window attention caches. `state_bytes`: recurrent state per sequence.
    """

    weight_bytes: int
    expert_bytes: int = 0
    largest_bytes: int = 0
    largest_expert_bytes: int = 0
    key_width: int = 0
    value_width: int = 0
    window_tokens: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True)
class Layout:
    """The memory layout of a model.

    `input_bytes` are read on the processor. `output_bytes` are those of the output layer on a device.
    `caches_are_known` is False for an architecture whose cache cannot be derived from the header.
    """

    architecture: str
    layers: tuple[LayerMemory, ...]
    input_bytes: int
    output_bytes: int
    vocabulary: int
    width: int
    feed_forward: int
    heads: int
    experts_used: int
    trained_context: int | None
    caches_are_known: bool
    parameters: int = 0
    shared_bytes: int = 0  # of the embedding table, if the output layer uses it too
    key_head_width: int = 0
    value_head_width: int = 0

    @property
    def is_expert_mixture(self) -> bool:
        """Whether a layer has experts, which may stay in system memory."""
        return any(layer.expert_bytes for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights, those of a table that two layers share once."""
        others = self.input_bytes + self.output_bytes - self.shared_bytes
        return others + sum(layer.weight_bytes for layer in self.layers)


@dataclass
class _TensorSums:
    """The bytes of the tensors of one layer."""

    weights: int = 0
    experts: int = 0
    largest: int = 0
    largest_expert: int = 0

    def add(self, size: int, *, is_expert: bool) -> None:
        self.weights += size
        self.largest = max(self.largest, size)
        if is_expert:
            self.experts += size
            self.largest_expert = max(self.largest_expert, size)

    def fields(self) -> tuple[int, int, int, int]:
        return self.weights, self.experts, self.largest, self.largest_expert


def make_layout(
    integers: Mapping[str, int],
    lists: Mapping[str, Sequence[int]],
    tensors: Mapping[str, int],
    table_shape: Sequence[int],
    architecture: str,
) -> Layout | None:
    """Return the layout, None for a file without layers.

    `integers` and `lists` are the metadata; `tensors` the bytes by name; `table_shape` that of `token_embd`.
    """
    facts = Attention(architecture, integers, lists)
    count = facts.layers
    if not 0 < count <= _MOST_LAYERS:
        return None
    sums = [_TensorSums() for _ in range(count)]
    input_bytes = output_bytes = 0
    for name, size in tensors.items():
        padded = -(-size // _PADDING) * _PADDING
        match = _LAYER.match(name)
        if match and int(match[1]) < count:
            sums[int(match[1])].add(padded, is_expert=_EXPERTS.search(name) is not None)
        elif name in _INPUT:
            input_bytes += padded
        else:
            output_bytes += padded
    shared = 0 if _OUTPUT in tensors else tensors.get(_INPUT[0], 0)
    layers = tuple(
        LayerMemory(*each.fields(), *facts.cached_widths(index), facts.window(index), facts.state(index))
        for index, each in enumerate(sums)
    )
    return Layout(
        architecture=architecture,
        layers=layers,
        input_bytes=input_bytes,
        output_bytes=output_bytes + shared,
        vocabulary=table_shape[1] if len(table_shape) > 1 else 0,
        width=facts.width,
        feed_forward=facts.feed_forward,
        heads=facts.most_heads,
        experts_used=facts.number("expert_used_count"),
        trained_context=facts.number("context_length") or None,
        caches_are_known=facts.is_known,
        shared_bytes=shared,
        key_head_width=facts.key_head(0),
        value_head_width=facts.value_head(0),
    )
