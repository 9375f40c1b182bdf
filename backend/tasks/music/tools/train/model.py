"""The network for training: complete tunes in parallel, with dropout. Its weights have the names in network.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backend.tasks.music.grid import SIDES
from backend.tasks.music.network import EPSILON, ROTARY_BASE, Shape


class Model(nn.Module):
    """The network: `forward(ids [B, T], sides [B, T, SIDES])` returns logits [B, T, vocabulary]."""

    def __init__(self, shape: Shape, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.attention_dropout = attention_dropout  # slow and hungry on a CPU
        # Dots are not allowed in the names of parameters.
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(torch.empty(size)) for name, size in shape.weights().items()}
        )
        for name, weight in self.weights.items():
            if name.endswith("scale"):
                nn.init.ones_(weight)
            elif name.endswith("shift"):
                nn.init.zeros_(weight)
            else:
                depth = (2 * shape.layers) ** -0.5 if name.endswith(("out", "down")) else 1.0
                nn.init.normal_(weight, std=0.02 * depth)
        self.register_buffer("angles", rotary_angles(shape, 1024), persistent=False)

    def weight(self, name: str) -> Tensor:
        """A weight by its name in network.py."""
        found: Tensor = self.weights[name.replace(".", "/")]
        return found

    def forward(self, ids: Tensor, sides: Tensor) -> Tensor:
        """Logits of the token after each."""
        shape = self.shape
        x = F.embedding(ids, self.weight("token"))
        for number in range(len(SIDES)):
            x = x + F.embedding(sides[..., number], self.weight(f"side.{number}"))
        x = self._drop(x)
        batch, length, width = x.shape
        angles = self.angles[:length]  # type: ignore[index]
        for layer in range(shape.layers):
            h = self._norm(x, f"{layer}.norm1")
            q, k, v = (
                part.view(batch, length, shape.heads, shape.head).transpose(1, 2)
                for part in self._linear(h, f"{layer}.qkv").chunk(3, dim=-1)
            )
            drop = self.attention_dropout if self.training else 0.0
            h = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, dropout_p=drop, is_causal=True)
            h = self._linear(h.transpose(1, 2).reshape(batch, length, width), f"{layer}.out")
            x = x + self._drop(h)
            h = F.gelu(self._linear(self._norm(x, f"{layer}.norm2"), f"{layer}.up"))
            x = x + self._drop(self._linear(h, f"{layer}.down"))
        return self._linear(self._norm(x, "norm"), "head")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weight(name) + self.weight(f"{name}.shift")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight(f"{name}.scale"), self.weight(f"{name}.shift"), EPSILON)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def rotary_angles(shape: Shape, positions: int) -> Tensor:
    """Return the angles [positions, head / 2] of the rotary embedding."""
    half = shape.head // 2
    rates = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    return (torch.arange(positions, dtype=torch.float64)[:, None] * rates).float()


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair of x [.., T, head], first half with second half, by its angle [T, head / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
