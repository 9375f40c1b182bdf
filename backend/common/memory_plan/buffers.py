"""The bytes of llama.cpp's buffers other than the weights: KV cache, recurrent state, computation, driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from backend.common.formats.gguf.layout import LayerMemory, Layout

CacheType = Literal["f16", "q8_0", "q4_0"]
CACHE_BLOCKS: dict[CacheType, tuple[int, int]] = {"f16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18)}  # numbers, bytes
_CELLS = 256  # llama.cpp rounds the cells of each sequence up to a multiple
_SYSTEM_BYTES = 100_000_000  # the worker itself: interpreter, library, vocabulary; 63 to 95 MB on x86-64
_COMPUTE_SPARE = 1 << 20


@dataclass(frozen=True)
class Corrections:
    """Measured divided by estimated bytes of the compute buffers, and what the driver took, by an earlier load.

    The driver's bytes are those outside llama.cpp's buffers: context of the device, library kernels, fragmentation.
    """

    compute: float = 1.0
    driver_bytes: int | None = None
    loads: int = 0


@dataclass(frozen=True)
class ContextSize:
    """The context of a load: tokens of each sequence, sequences, type of the KV cache, tokens computed at once."""

    tokens: int
    slots: int
    cache_type: CacheType = "f16"
    flash_attention: bool = True
    batch_tokens: int = 512
    corrections: Corrections = field(default_factory=Corrections)

    @property
    def cells(self) -> int:
        """The cells of one sequence."""
        return -(-self.tokens // _CELLS) * _CELLS


def cache_bytes(layer: LayerMemory, size: ContextSize) -> int:
    """Return the bytes that a layer keeps between tokens, for all sequences."""
    cells = size.cells
    if layer.window_tokens is not None:
        windowed = layer.window_tokens + size.batch_tokens
        cells = min(cells, -(-windowed // _CELLS) * _CELLS)
    numbers, block = CACHE_BLOCKS[size.cache_type]
    return size.slots * (cells * (layer.key_width + layer.value_width) * block // numbers + layer.state_bytes)


def compute_bytes(layout: Layout, size: ContextSize) -> int:
    """Return the bytes of the compute buffer of a device, corrected by what was measured.

    Fitted to llama.cpp's load log on the processor: activations, the mask, and without flash attention the scores.
    """
    batch = min(size.batch_tokens, size.cells)
    activations = 4 * batch * (8 * layout.width + 3 * layout.feed_forward + 2 * layout.experts_used * layout.width)
    windows = {layer.window_tokens for layer in layout.layers} - {None}
    masked = size.cells + sum(min(size.cells, (window or 0) + batch) for window in windows)
    mask = masked * batch * (2 if size.flash_attention else 4)
    scores = 0 if size.flash_attention else 4 * layout.heads * size.cells * batch
    logits = 4 * size.slots * layout.vocabulary
    return int((activations + mask + scores + logits + _COMPUTE_SPARE) * size.corrections.compute)


def system_bytes() -> int:
    """Return what a worker takes in system memory outside the buffers."""
    return _SYSTEM_BYTES


def unfit_cache_type(layout: Layout, size: ContextSize) -> str | None:
    """Return why the KV cache cannot have its type, None if it can."""
    numbers, _ = CACHE_BLOCKS[size.cache_type]
    if numbers == 1:
        return None
    if not size.flash_attention:
        return f"a KV cache of {size.cache_type} needs flash attention, which is off"
    heads = {width for width in (layout.key_head_width, layout.value_head_width) if width % numbers}
    if heads:
        return f"a KV cache of {size.cache_type} needs heads of a multiple of {numbers}; the model's have {min(heads)}"
    return None
