"""The shape of the network, whichever library computes it, and the names of its weights. Standard library only.

A decoder-only transformer, pre-norm, rotary positions (Su et al. 2021, RoFormer); side ids are further embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.tasks.music.grid import SIDES
from backend.tasks.music.tokens import VOCABULARY

EPSILON = 1e-5
ROTARY_BASE = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes; `hidden` is the width of the feed-forward layers."""

    width: int
    layers: int
    heads: int
    hidden: int

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name with its shape; matrices are [inputs, outputs]."""
        width, hidden = self.width, self.hidden
        found: dict[str, tuple[int, ...]] = {"token": (VOCABULARY, width)}
        found |= {f"side.{number}": (size, width) for number, size in enumerate(SIDES)}
        for layer in range(self.layers):
            found |= {
                f"{layer}.norm1.scale": (width,),
                f"{layer}.norm1.shift": (width,),
                f"{layer}.qkv": (width, 3 * width),
                f"{layer}.qkv.shift": (3 * width,),
                f"{layer}.out": (width, width),
                f"{layer}.out.shift": (width,),
                f"{layer}.norm2.scale": (width,),
                f"{layer}.norm2.shift": (width,),
                f"{layer}.up": (width, hidden),
                f"{layer}.up.shift": (hidden,),
                f"{layer}.down": (hidden, width),
                f"{layer}.down.shift": (width,),
            }
        found |= {
            "norm.scale": (width,),
            "norm.shift": (width,),
            "head": (width, VOCABULARY),
            "head.shift": (VOCABULARY,),
        }
        return found


def graph_name(half: bool, device: bool) -> str:
    """The file of an ONNX graph: in float16 or float32, keys and values kept on the device or on the host (CPU)."""
    return f"step-{'device' if device else 'host'}-{'fp16' if half else 'fp32'}.onnx"
