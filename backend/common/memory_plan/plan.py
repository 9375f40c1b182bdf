"""A memory plan: what a load places on each device and in system memory, and the arithmetic in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from backend.common.memory_plan.buffers import CacheType

Split = Literal["layers", "none"]
Experts = Literal["auto", "system", "device"]


@dataclass(frozen=True)
class DeviceRoom:
    """The free memory of one device. `driver_bytes`: optional, what the driver takes outside the buffers.

    `is_system`: whether its memory is the system's, as on integrated cards.
    """

    where: str
    free_bytes: int
    driver_bytes: int = 0
    is_system: bool = False


@dataclass(frozen=True)
class PlanSettings:
    """What the user set. None: chosen by the free memory."""

    gpu_layers: int | None = None
    slots: int | None = None
    context_tokens: int | None = None
    kv_cache: CacheType = "f16"
    split: Split = "layers"
    experts: Experts = "auto"
    flash_attention: bool = True
    batch_tokens: int = 512


@dataclass(frozen=True)
class DeviceShare:
    """What a load places on one device, in bytes. `layers` counts the output layer."""

    where: str
    layers: int
    weight_bytes: int
    cache_bytes: int
    compute_bytes: int
    driver_bytes: int
    free_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The sum of all parts."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes + self.driver_bytes


@dataclass(frozen=True)
class Plan:
    """What a load places where.

    `gpu_layers` of `layers` are on devices, the output layer included, as llama.cpp counts them. `expert_layers`: the
    experts of so many first layers stay in system memory. `fits` is False if the free memory does not suffice.
    """

    gpu_layers: int
    layers: int
    shares: tuple[DeviceShare, ...]
    expert_layers: int
    system_weight_bytes: int
    system_cache_bytes: int
    system_other_bytes: int
    system_free_bytes: int | None
    slots: int
    context_tokens: int
    kv_cache: CacheType
    flash_attention: bool
    fits: bool
    notes: tuple[str, ...] = field(default=())

    @property
    def is_whole(self) -> bool:
        """Whether everything that can be on a device is there."""
        return self.gpu_layers == self.layers and not self.expert_layers

    @property
    def system_bytes(self) -> int:
        """The bytes in system memory."""
        return self.system_weight_bytes + self.system_cache_bytes + self.system_other_bytes

    @property
    def device_bytes(self) -> int:
        """The bytes on all devices."""
        return sum(share.needed_bytes for share in self.shares)

    def explain(self) -> str:
        """Return the placement with its arithmetic, as sentences."""
        context = f"{self.context_tokens:,} tokens" + (f" × {self.slots}" if self.slots > 1 else "")
        sentences = []
        for share in self.shares:
            sum_ = f"{gigabytes(share.weight_bytes)} weights + {gigabytes(share.cache_bytes)} cache at {context}"
            rest = gigabytes(share.compute_bytes + share.driver_bytes)
            free = f"{gigabytes(share.free_bytes)} free"
            sentences.append(f"{share.where}: {share.layers} of {self.layers} layers, {sum_} + {rest}; {free}.")
        if self.expert_layers:
            sentences.append(f"The experts of {self.expert_layers} layers are in system memory.")
        free = "" if self.system_free_bytes is None else f"; {gigabytes(self.system_free_bytes)} free"
        if not self.shares:
            sum_ = f"{gigabytes(self.system_weight_bytes)} weights + {gigabytes(self.system_cache_bytes)} cache at "
            sentences.append(f"System memory: {sum_}{context} + {gigabytes(self.system_other_bytes)}{free}.")
        elif not self.is_whole:
            sentences.append(f"System memory: {gigabytes(self.system_bytes)}{free}.")
        sentences.extend(f"{note[:1].upper()}{note[1:]}." for note in self.notes)
        return " ".join(sentences)


def gigabytes(size: int) -> str:
    """Return a size as text: one decimal in GB, or MB below 0.1 GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 95_000_000 else f"{size / 1e6:,.0f} MB"
