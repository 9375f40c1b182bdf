"""What the layers of a GGUF model keep between tokens: KV cache, sliding windows and recurrent state.

The rules are those of llama.cpp (src/llama-hparams.cpp, src/models/*.cpp); the names of keys those of gguf-py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_FLOAT_BYTES = 4  # recurrent state is kept as float32
_WINDOW_EVERY = {  # one layer in so many attends to all tokens, if the file has no pattern
    **{"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma-embedding": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4},
    **{"olmo2": 4, "exaone4": 4, "exaone-moe": 4, "smallthinker": 4, "afmoe": 4, "modern-bert": 3, "plamo3": 8},
}
_FULL_FIRST = frozenset({"smallthinker", "modern-bert"})  # the first layer of each group attends to all tokens
_FIXED_WINDOWS = {"gemma2": 4096, "llama4": 8192}  # without a key in the file
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})  # all layers
_HYBRID_BY_HEADS = frozenset(  # a layer without key and value heads is recurrent
    {"jamba", "plamo2", "lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe", "kimi-linear"}
)
_HYBRID_BY_INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe"})  # each fourth layer has attention
_HYBRID_EVERYWHERE = frozenset({"falcon-h1"})  # each layer has both
_CACHELESS = frozenset(  # a text is computed in one piece
    {"bert", "nomic-bert", "nomic-bert-moe", "modern-bert", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"t5encoder", "gemma-embedding", "dream", "llada", "llada-moe"}
)
_STATE_KEYS = ("ssm.", "wkv.", "shortconv.", "kda.")
_UNKNOWN_KEYS = ("attention.indexer.", "attention.compress_")  # further caches, of newer architectures


@dataclass(frozen=True)
class Attention:
    """The shapes of a model's caches, by layer, from its metadata."""

    architecture: str
    integers: Mapping[str, int]
    lists: Mapping[str, Sequence[int]]

    def number(self, key: str, default: int = 0) -> int:
        """Return a dimension of the architecture."""
        return self.integers.get(f"{self.architecture}.{key}", default)

    def at(self, key: str, layer: int, default: int) -> int:
        """Return a dimension of a layer, which the file declares for each layer or for all."""
        values = self.lists.get(f"{self.architecture}.{key}")
        if values:
            return values[layer] if layer < len(values) else values[-1]
        return self.number(key, default)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.number("block_count")

    @property
    def width(self) -> int:
        """The width of the residual stream."""
        return self.number("embedding_length")

    @property
    def feed_forward(self) -> int:
        """The greatest width of what one token's feed-forward layers compute."""
        dense = max(self.lists.get(f"{self.architecture}.feed_forward_length", ()), default=0)
        dense = max(dense, self.number("feed_forward_length"))
        shared = self.number("expert_shared_feed_forward_length")
        experts = self.number("expert_feed_forward_length") * self.number("expert_used_count")
        return max(dense, shared, experts)

    @property
    def most_heads(self) -> int:
        """The greatest number of attention heads of a layer."""
        return max(
            [*self.lists.get(f"{self.architecture}.attention.head_count", ()), self.number("attention.head_count")]
        )

    @cached_property
    def is_known(self) -> bool:
        """Whether the caches of this architecture can be derived from the header."""
        prefix = f"{self.architecture}."
        names = [name.removeprefix(prefix) for name in (*self.integers, *self.lists) if name.startswith(prefix)]
        if any(name.startswith(_UNKNOWN_KEYS) for name in names):
            return False
        has_state = any(name.startswith(_STATE_KEYS) for name in names)
        known = _RECURRENT | _HYBRID_BY_HEADS | _HYBRID_BY_INTERVAL | _HYBRID_EVERYWHERE
        if has_state and self.architecture not in known:
            return False
        return self.architecture in _RECURRENT or bool(self.width and self.most_heads)

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer keeps a recurrent state."""
        if self.architecture in _RECURRENT | _HYBRID_EVERYWHERE:
            return True
        if self.architecture in _HYBRID_BY_HEADS:
            feed_forward = self.at("feed_forward_length", layer, 0)
            is_feed_forward = self.architecture.startswith("nemotron") and feed_forward > 0
            return self._cached_heads(layer) == 0 and not is_feed_forward
        if self.architecture in _HYBRID_BY_INTERVAL:
            return (layer + 1) % (self.number("full_attention_interval") or 4) != 0
        return False

    def cached_widths(self, layer: int) -> tuple[int, int]:
        """Return the numbers that a layer caches for a token, as keys and as values."""
        is_pure_state = self.is_recurrent(layer) and self.architecture not in _HYBRID_EVERYWHERE
        shared = self.number("attention.shared_kv_layers")  # the last layers use the cache of earlier ones
        predicted = self.number("nextn_predict_layers")  # not part of the model's own output
        if is_pure_state or layer >= self.layers - max(shared, predicted) or self.architecture in _CACHELESS:
            return 0, 0
        heads = max(0, self._cached_heads(layer))
        if self.number("attention.key_length_mla"):  # compressed: the values are a view of the keys
            return heads * self.key_head(layer), 0
        return heads * self.key_head(layer), heads * self.value_head(layer)

    def window(self, layer: int) -> int | None:
        """Return the tokens of a layer's sliding window, None for a layer that attends to all tokens."""
        tokens = self.number("attention.sliding_window") or _FIXED_WINDOWS.get(self.architecture, 0)
        name = "attention.sliding_window_pattern"
        if not tokens or (self.architecture not in _WINDOW_EVERY and f"{self.architecture}.{name}" not in self.lists):
            return None
        pattern = self.lists.get(f"{self.architecture}.{name}")
        if pattern:
            return tokens if self.at(name, layer, 0) else None
        every = self.number(name) or _WINDOW_EVERY[self.architecture]
        position = layer % every
        return tokens if (position != 0 if self.architecture in _FULL_FIRST else position < every - 1) else None

    def state(self, layer: int) -> int:
        """Return the bytes of a layer's recurrent state for one sequence."""
        if not self.is_recurrent(layer):
            return 0
        if head := self.number("wkv.head_size"):
            return _FLOAT_BYTES * self.width * (self.number("token_shift_count", 2) + head)
        if kept := self.number("shortconv.l_cache"):
            return _FLOAT_BYTES * self.width * (kept - 1)
        inner, convolved = self.number("ssm.inner_size"), max(0, self.number("ssm.conv_kernel") - 1)
        if head := self.number("kda.head_dim"):
            heads = self.most_heads
            return _FLOAT_BYTES * heads * head * (3 * convolved + head)
        state = self.number("ssm.state_size")
        return _FLOAT_BYTES * (convolved * (inner + 2 * self.number("ssm.group_count") * state) + state * inner)

    def key_head(self, layer: int) -> int:
        """Return the width of a key."""
        return self._head("key_length", layer)

    def value_head(self, layer: int) -> int:
        """Return the width of a value."""
        return self._head("value_length", layer)

    def _head(self, kind: str, layer: int) -> int:
        heads = self.at("attention.head_count", layer, 0)
        default = self.width // heads if heads > 0 else 0
        windowed = self.number(f"attention.{kind}_swa") if self.window(layer) else 0
        return max(0, windowed or self.number(f"attention.{kind}") or default)

    def _cached_heads(self, layer: int) -> int:
        return self.at("attention.head_count_kv", layer, self.at("attention.head_count", layer, 0))
