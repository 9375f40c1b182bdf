"""The architecture of the network and the names of its weights, shared by all libraries. Standard library only.

A decoder-only transformer with pre-norm layers and rotary position embeddings (Su et al. 2021, RoFormer). The
embeddings of the token and of its side ids are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.tasks.music.grid import SIDES
from backend.tasks.music.tokens import VOCABULARY

EPSILON = 1e-5
ROTARY_BASE = 10000.0


@dataclass(frozen=True)
class Shape:
    """The sizes of the network. `hidden` is the width of the feed-forward layers."""

    width: int
    layers: int
    heads: int
    hidden: int

    @property
    def head(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name. Matrices are [inputs, outputs]."""
        width, hidden = self.width, self.hidden
        shapes: dict[str, tuple[int, ...]] = {"token": (VOCABULARY, width)}
        shapes |= {f"side.{number}": (size, width) for number, size in enumerate(SIDES)}
        for layer in range(self.layers):
            shapes |= {
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
        shapes |= {
            "norm.scale": (width,),
            "norm.shift": (width,),
            "head": (width, VOCABULARY),
            "head.shift": (VOCABULARY,),
        }
        return shapes


def graph_name(half: bool, device: bool) -> str:
    """Return the file name of an ONNX graph: float16 or float32, with its KV cache on the device or on the host."""
    return f"step-{'device' if device else 'host'}-{'fp16' if half else 'fp32'}.onnx"
