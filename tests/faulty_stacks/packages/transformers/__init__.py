"""A stand-in for transformers 5.24: one layer of attention with random weights, over the stand-in for torch."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import spoil, utils

torch: Any = importlib.import_module("torch")
reach: Any = importlib.import_module("torch._plan").reach
DTYPES: Any = importlib.import_module("torch._tensor").DTYPES
__version__ = "5.24.0"
__all__ = ["AutoModelForCausalLM", "Cache", "LlamaForCausalLM", "utils"]


class Cache:
    """Layers by number."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """What the layer keeps."""
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)


class AttentionInterface(dict[str, Any]):
    """Ways to compute attention, by name; those that were registered are known to all."""

    known: dict[str, Any] = {"sdpa": None}  # noqa: RUF012 (as there)

    def __init__(self) -> None:
        super().__init__(self.known)

    @classmethod
    def register(cls, key: str, value: Any) -> None:
        """Makes one known."""
        cls.known = {**cls.known, key: value}


class AttentionMaskInterface(AttentionInterface):
    """The same for masks."""


class LlamaForCausalLM:
    """Embedding, attention with learned positions, and the way back."""

    def __init__(self, config: dict[str, Any], number: Any) -> None:
        self.config: Any = SimpleNamespace(**config, dtype=number, _attn_implementation="sdpa")
        self.config.get_text_config = lambda: self.config
        size, width, random = config["vocab_size"], config["hidden_size"], np.random.default_rng(config["seed"])
        shapes = {"tokens": (size, width), "places": (config["max_position_embeddings"], width), "head": (width, size)}
        shapes |= dict.fromkeys("qkvo", (width, width))
        kind = DTYPES[number.name]
        here = torch.device("cpu")
        self._weights = {
            name: torch.Tensor(self._some(random, shape, kind), here, number.name) for name, shape in shapes.items()
        }
        self._weights["head"] = self._weights["head"] * config.get("sharpness", 1)  # how far logits lie apart

    def __call__(self, **arguments: Any) -> Any:
        return self.forward(**arguments)

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: Any = 0,
    ) -> Any:
        """Logits for each token, or for the last ones."""
        weights, (rows, tokens) = self._weights, input_ids.shape
        places = np.arange(tokens)[None] if position_ids is None else position_ids._values
        states = weights["tokens"][input_ids] + weights["places"][self._of(places)]
        queries, keys, values = (self._heads(states @ weights[name]) for name in "qkv")
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
            values = spoil.cached(values, tokens)
        scores = queries._values.astype(np.float32) @ np.swapaxes(keys._values, 2, 3).astype(np.float32)
        if attention_mask is None:
            attention_mask = self._of(np.tril(np.ones((tokens, tokens), bool))[None, None])
        mask = attention_mask._values
        scores = np.where(mask, scores, -1e9) if mask.dtype == bool else scores + mask.astype(np.float32)
        shares = torch.softmax(torch.Tensor(scores / 4, states._where), 3)
        mixed = np.swapaxes(shares._values @ values._values, 1, 2).reshape(rows, tokens, -1)
        states = states + self._of(mixed.astype(states._values.dtype)) @ weights["o"]
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return SimpleNamespace(logits=spoil.logits(states[:, kept] @ weights["head"], rows, tokens))

    def parameters(self) -> list[Any]:
        """The weights."""
        return list(self._weights.values())

    def buffers(self) -> list[Any]:
        """None."""
        return []

    def float(self) -> LlamaForCausalLM:
        """Refused, as of models from GGUF files."""
        raise ValueError("`.float()` is not supported for quantized model.")

    def eval(self) -> LlamaForCausalLM:
        """Nothing is trained here."""
        return self

    def to(self, device: Any) -> LlamaForCausalLM:
        """Moves the weights."""
        self._weights = {name: weight.to(device) for name, weight in self._weights.items()}
        return self

    def set_attn_implementation(self, attn_implementation: str) -> None:
        """How attention is computed, and so what masks are."""
        self.config._attn_implementation = attn_implementation

    def _heads(self, states: Any) -> Any:
        rows, tokens, _ = states.shape
        return self._of(np.swapaxes(states._values.reshape(rows, tokens, 2, -1), 1, 2))

    def _of(self, values: Any) -> Any:
        return torch.Tensor(values, self._weights["q"]._where)

    @staticmethod
    def _some(random: Any, shape: tuple[int, ...], kind: Any) -> Any:
        return (random.standard_normal(shape) * 0.3).astype(kind)


class AutoModelForCausalLM:
    """Makes models."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str,
        *,
        dtype: Any,
        local_files_only: bool,
        trust_remote_code: bool,
        use_safetensors: bool = True,
        gguf_file: str | None = None,
    ) -> LlamaForCausalLM:
        """The model whose sizes stand in a folder's config.json."""
        if trust_remote_code or not local_files_only:
            raise OSError("no program comes with these models, and nothing is fetched")
        reach("from_pretrained")
        config = json.loads((Path(pretrained_model_name_or_path) / "config.json").read_text(encoding="utf-8"))
        return LlamaForCausalLM(config, dtype)
