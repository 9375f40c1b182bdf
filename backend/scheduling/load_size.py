"""The size of a load: context and concurrent jobs where the settings leave them open, and the memory they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from backend.common.config.settings.schema import Text
from backend.common.formats.gguf import Layout, read_header, read_layout
from backend.common.memory_plan import Corrections, DeviceRoom, Plan, PlanSettings, make_plan
from backend.common.memory_plan.planner import BASE_TOKENS
from backend.common.types import Device
from backend.engines import engines, load_engine

_CARD_SLOTS = (8, 4, 2)  # tried in this order
_PROCESSOR_SLOTS = (4, 2)
_CARD_SHARE, _PROCESSOR_SHARE = 0.5, 0.125  # of the memory that is left, for more jobs at once
# A worker's context on a card: 300 to 500 MB with CUDA, less than 100 with Vulkan. What the driver takes beyond that is
# measured in the worker, which counts what is free once the context is there.
_CONTEXT_BYTES = 300_000_000
_UNLIMITED = 1 << 60
_PROCESSOR_BATCH = 64  # tokens of a prompt at once, so that a cancel takes effect soon


GpuLayers = int | Literal["auto"]


@dataclass(frozen=True)
class LoadSize:
    """Context and concurrent jobs of a load, and the device memory that it needs.

    `least_bytes` are those without which it does not load, as the rest can be in system memory. Both are None if
    unknown. `plan`: optional, of engines that place layers.
    """

    context_tokens: int
    slots: int
    needed_bytes: int | None
    least_bytes: int | None
    plan: Plan | None = None


def uses_machine_memory(device: Device) -> bool:
    """Return whether a device works in the machine's own memory; emulated ones do too."""
    return device.kind in ("cpu", "integrated", "emulated")


def plan_settings(text: Text, gpu_layers: GpuLayers | None = None, batch_tokens: int = 512) -> PlanSettings:
    """Return the user's settings for a plan. `gpu_layers`: optional, of one request."""
    return PlanSettings(
        gpu_layers=open_number(text.gpu_layers if gpu_layers is None else gpu_layers),
        slots=open_number(text.slots),
        context_tokens=open_number(text.context_tokens),
        kv_cache=text.kv_cache,
        experts=text.experts,
        batch_tokens=batch_tokens,
    )


def find_load_size(
    engine: str,
    model_path: str,
    device: Device,
    text: Text,
    *,
    free_bytes: int | None,
    system_free_bytes: int | None,
    corrections: Corrections,
    gpu_layers: GpuLayers | None = None,
) -> LoadSize:
    """Return the size of a load on a device with so much free memory. It reads the model's files: call it in a thread.

    Without `free_bytes` what is open has its smallest size, and all layers are on the device. Raises ModelBroken.
    """
    if engines()[engine].plans_memory:
        layout = read_layout(Path(model_path))
        if layout is not None and layout.caches_are_known:
            return _planned_size(
                layout, Path(model_path), device, text, free_bytes, system_free_bytes, corrections, gpu_layers
            )
        return LoadSize(open_number(text.context_tokens) or BASE_TOKENS, open_number(text.slots) or 1, None, None)
    estimate = partial(load_engine(engine).estimate_bytes, model_path, open_number(text.context_tokens) or BASE_TOKENS)
    slots = open_number(text.slots) or _most_slots(engine, estimate, device, free_bytes)
    needed = estimate(slots)
    least = least_bytes(engine, model_path, device, needed)
    return LoadSize(open_number(text.context_tokens) or BASE_TOKENS, slots, needed, least)


def least_bytes(engine: str, model_path: str, device: Device, needed: int | None) -> int | None:
    """Return the bytes that a model requires on a device: less than `needed` on a card that can swap its parts.

    It reads the model's files: call it in a thread.
    """
    compute = engines()[engine].least_bytes
    return needed if compute is None or uses_machine_memory(device) else compute(model_path)


def _planned_size(
    layout: Layout,
    path: Path,
    device: Device,
    text: Text,
    free_bytes: int | None,
    system_free_bytes: int | None,
    corrections: Corrections,
    gpu_layers: GpuLayers | None,
) -> LoadSize:
    settings = plan_settings(text, gpu_layers)
    if free_bytes is None:
        settings = _base(settings)
    if read_header(path).makes_embeddings:  # a text is computed in one piece
        context = min(settings.context_tokens or BASE_TOKENS, layout.trained_context or BASE_TOKENS)
        settings = replace(settings, slots=settings.slots or 1, context_tokens=context, batch_tokens=context)
    if device.kind == "cpu":
        settings = replace(settings, batch_tokens=min(settings.batch_tokens, _PROCESSOR_BATCH))
        plan = make_plan(layout, [], free_bytes, settings, corrections)
        base = make_plan(layout, [], None, _base(settings), corrections)
        return LoadSize(plan.context_tokens, plan.slots, base.system_bytes, base.system_bytes, plan)
    room = DeviceRoom(
        device.id,
        _UNLIMITED if free_bytes is None else free_bytes,
        driver_bytes(device, corrections),
        is_system=uses_machine_memory(device),
    )
    plan = make_plan(layout, [room], system_free_bytes, settings, corrections)

    def bytes_with(layers: int) -> int:
        return make_plan(layout, [room], None, replace(_base(settings), gpu_layers=layers), corrections).device_bytes

    all_layers = len(layout.layers) + 1
    needed = bytes_with(all_layers if settings.gpu_layers is None else settings.gpu_layers)
    least = min(needed, bytes_with(min(2, all_layers))) if settings.gpu_layers is None else needed
    return LoadSize(plan.context_tokens, plan.slots, needed, least, plan)


def driver_bytes(device: Device, corrections: Corrections) -> int:
    """Return what the driver takes of a device outside the buffers."""
    context = 0 if uses_machine_memory(device) else _CONTEXT_BYTES
    return context + (corrections.driver_bytes or 0)


def _base(settings: PlanSettings) -> PlanSettings:
    """Return the settings with the smallest size of what is open."""
    return replace(settings, slots=settings.slots or 1, context_tokens=settings.context_tokens or BASE_TOKENS)


def _most_slots(engine: str, estimate: Callable[[int], int | None], device: Device, free_bytes: int | None) -> int:
    """Return how many jobs at once take no more than a share of the memory that one job leaves."""
    single = estimate(1)
    if not engines()[engine].batches or single is None or free_bytes is None:
        return 1
    is_card = not uses_machine_memory(device)
    limit = (free_bytes - single) * (_CARD_SHARE if is_card else _PROCESSOR_SHARE)
    for slots in _CARD_SLOTS if is_card else _PROCESSOR_SLOTS:
        if ((estimate(slots) or _UNLIMITED) - single) <= limit:
            return slots
    return 1


def open_number(setting: int | str) -> int | None:
    """Return a number, None for a setting that is left to the service."""
    return None if isinstance(setting, str) else setting
