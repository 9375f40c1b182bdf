"""How llama.cpp places one model on devices and in system memory, as the server computed it for a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

CacheType = Literal["f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class LlamaParameters:
    """Parameters of one load. Context and sequences are fields of `LoadRequest`.

    The defaults put every layer and the KV cache on the device. On the processor the placement fields have no effect.
    """

    gpu_layers: int | None = None  # layers on the devices, the output layer included. Default: all
    devices: tuple[str, ...] = ()  # PCI addresses of the cards that share the layers. Default: the device alone
    split: tuple[float, ...] = ()  # share of the layers for each of `devices`. Default: by free memory
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"  # a quantized type needs flash attention
    flash_attention: FlashAttention = "auto"
    expert_layers_in_memory: int = 0  # of the first layers, the experts stay in system memory; -1: of all layers


def llama_parameters_from(fields: Mapping[str, Any]) -> LlamaParameters:
    """Parse LlamaParameters from its JSON object."""
    sequences = {name: tuple(fields[name]) for name in ("devices", "split") if name in fields}
    return LlamaParameters(**{**fields, **sequences})
