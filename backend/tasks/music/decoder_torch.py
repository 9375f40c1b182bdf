"""A decoder that runs the network in torch, on any device, in float32 or float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from backend.tasks.music.decoder import Floats, Ints
from backend.tasks.music.network import EPSILON
from backend.tasks.music.weights import Weights

INITIAL_CAPACITY = 128


class TorchDecoder:
    """A Decoder. `device` is an argument of `Tensor.to`: a name, a torch.device, or a plug-in's device object."""

    def __init__(self, weights: Weights, device: Any, dtype: torch.dtype = torch.float32) -> None:
        self._weights = weights
        self._device = device
        self._dtype = dtype
        self.arrays = {
            name: torch.from_numpy(array.astype(np.float32)).to(device, dtype) for name, array in weights.arrays.items()
        }
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._position = self._capacity = 0

    def start(self, batch: int, tokens: int) -> None:
        """Reset the KV cache for `batch` sequences of at most `tokens` tokens."""
        shape = self._weights.shape
        self._position, self._tokens = 0, tokens
        self._capacity = min(INITIAL_CAPACITY, tokens)
        size = (batch, shape.heads, self._capacity, shape.head)
        self._keys = [torch.zeros(size, dtype=self._dtype, device=self._device) for _ in range(shape.layers)]
        self._values = [torch.zeros_like(keys) for keys in self._keys]

    @torch.inference_mode()
    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Append a token to each sequence and return the logits of the next one, [batch, vocabulary] float32."""
        if self._position == self._capacity:
            self._grow()
        x = self._to_device(self._weights.embed(ids, sides))
        cos, sin = (self._to_device(part) for part in self._weights.rotation(self._position))
        for layer in range(self._weights.shape.layers):
            x = self._layer(x, layer, cos, sin)
        self._position += 1
        logits = self._linear(self._norm(x, "norm"), "head")
        result: Floats = logits.float().cpu().numpy()
        return result

    def _layer(self, x: Tensor, layer: int, cos: Tensor, sin: Tensor) -> Tensor:
        shape = self._weights.shape
        parts = self._linear(self._norm(x, f"{layer}.norm1"), f"{layer}.qkv").view(len(x), 3, shape.heads, shape.head)
        query, key = _rotate(parts[:, 0], cos, sin), _rotate(parts[:, 1], cos, sin)
        position, seen = self._position, self._position + 1
        self._keys[layer][:, :, position] = key
        self._values[layer][:, :, position] = parts[:, 2]
        scores = query[:, :, None] @ self._keys[layer][:, :, :seen].transpose(2, 3) * shape.head**-0.5
        mixed = torch.softmax(scores, dim=-1) @ self._values[layer][:, :, :seen]
        x = x + self._linear(mixed.reshape(len(x), shape.width), f"{layer}.out")
        hidden = F.gelu(self._linear(self._norm(x, f"{layer}.norm2"), f"{layer}.up"))
        return x + self._linear(hidden, f"{layer}.down")

    def _grow(self) -> None:
        """Double the capacity of the KV cache."""
        if self._capacity >= self._tokens:
            raise ValueError(f"a tune is longer than {self._tokens} tokens")
        more = min(self._capacity, self._tokens - self._capacity)
        for caches in (self._keys, self._values):
            caches[:] = [F.pad(cache, (0, 0, 0, more)) for cache in caches]
        self._capacity += more

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return torch.addmm(self.arrays[f"{name}.shift"], x, self.arrays[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.arrays[f"{name}.scale"], self.arrays[f"{name}.shift"], EPSILON)

    def _to_device(self, array: Floats) -> Tensor:
        return torch.from_numpy(array).to(self._device, self._dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings: rotate the first half of each head with the second."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
