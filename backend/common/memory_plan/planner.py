"""Computes memory plans. Order of what moves to system memory: experts of the first layers, then first layers.

What the user left open is chosen in this order: everything on the devices, a context of `BASE_TOKENS`, then more
sequences and a longer context while they take no more than a share of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from backend.common.formats.gguf.layout import Layout
from backend.common.memory_plan.buffers import (
    ContextSize,
    Corrections,
    cache_bytes,
    compute_bytes,
    system_bytes,
    unfit_cache_type,
)
from backend.common.memory_plan.plan import DeviceRoom, DeviceShare, Plan, PlanSettings

BASE_TOKENS = 4096  # a context that most conversations fit
_LEAST_TOKENS = 512
_GROWTH = ((2, 4096), (4, 4096), (4, 8192), (4, 16384), (8, 16384), (8, 32768), (16, 32768))  # sequences, tokens
_CARD_GROWTH_SHARE = 0.5  # of the memory that is left: another model needs the rest
_SYSTEM_GROWTH_SHARE = 0.125
_SYSTEM_SLOTS = 4  # more sequences at once are not faster on a processor
_SPARE_SHARE = 0.01  # of a device's free memory: alignment and fragmentation
_BISECTIONS = 12
_AUTO = PlanSettings()
_UNMEASURED = Corrections()


@dataclass(frozen=True)
class _Costs:
    """Sums of bytes before each layer, the output layer last: weights, their experts, caches."""

    weights: tuple[int, ...]
    experts: tuple[int, ...]
    caches: tuple[int, ...]
    input_bytes: int
    shared_bytes: int
    compute: int
    largest: tuple[int, ...]  # tensor before each layer
    largest_expert: tuple[int, ...]

    @property
    def layers(self) -> int:
        """The number of layers with the output layer."""
        return len(self.weights) - 1

    def weights_in(self, first: int, last: int, expert_layers: int) -> int:
        """Return the weights of the layers from `first` to before `last`, without experts in system memory."""
        moved = max(first, min(last, expert_layers))
        return self.weights[last] - self.weights[first] - (self.experts[moved] - self.experts[first])

    def placed(self, first: int, last: int, expert_layers: int) -> int:
        """Return the bytes of weights and caches of these layers on a device."""
        return self.weights_in(first, last, expert_layers) + self.caches[last] - self.caches[first]

    def device_compute(self, gpu_layers: int, expert_layers: int) -> int:
        """Return the compute buffer of a device: it takes a copy of each tensor in system memory for long prompts."""
        return self.compute + max(self.largest[self.layers - gpu_layers], self.largest_expert[expert_layers])


def make_plan(
    layout: Layout,
    rooms: Sequence[DeviceRoom],
    system_free_bytes: int | None,
    settings: PlanSettings = _AUTO,
    corrections: Corrections = _UNMEASURED,
) -> Plan:
    """Return the best plan that fits, or the smallest one with `fits` False.

    Without `rooms` everything is in system memory. `system_free_bytes`: optional; None is no limit.
    """
    if settings.split == "none" and len(rooms) > 1:
        rooms = [max(rooms, key=lambda room: room.free_bytes)]
    base = _base_size(layout, settings, corrections)
    notes = []
    if reason := unfit_cache_type(layout, base):
        notes.append(f"{reason}, so the cache is f16")
        base = replace(base, cache_type="f16")
    plan = _place(layout, rooms, system_free_bytes, settings, base)
    while not plan.fits and settings.context_tokens is None and base.tokens > _LEAST_TOKENS:
        base = replace(base, tokens=max(_LEAST_TOKENS, base.tokens // 2))
        plan = _place(layout, rooms, system_free_bytes, settings, base)
    if plan.fits:
        plan = _grow(layout, rooms, system_free_bytes, settings, base, plan)
    return replace(plan, notes=tuple(notes))


def _base_size(layout: Layout, settings: PlanSettings, corrections: Corrections) -> ContextSize:
    trained = layout.trained_context or BASE_TOKENS
    return ContextSize(
        tokens=min(settings.context_tokens or BASE_TOKENS, trained),
        slots=settings.slots or 1,
        cache_type=settings.kv_cache,
        flash_attention=settings.flash_attention,
        batch_tokens=settings.batch_tokens,
        corrections=corrections,
    )


def _grow(
    layout: Layout,
    rooms: Sequence[DeviceRoom],
    system_free_bytes: int | None,
    settings: PlanSettings,
    base: ContextSize,
    plan: Plan,
) -> Plan:
    """Return the plan with more sequences and a longer context, as far as they are open and take a share of the rest.

    A plan that had to leave layers in system memory keeps its size: each further token would move more of them.
    """
    if rooms and not plan.is_whole and settings.gpu_layers is None:
        return plan
    left = _left_bytes(plan)
    best = plan
    for size in _larger_sizes(layout, settings, base, on_card=bool(rooms)):
        grown = _place(layout, rooms, system_free_bytes, settings, size)
        share = _CARD_GROWTH_SHARE if rooms else _SYSTEM_GROWTH_SHARE
        taken = _total_bytes(grown) - _total_bytes(plan)
        same_place = (grown.gpu_layers, grown.expert_layers) == (plan.gpu_layers, plan.expert_layers)
        if not (grown.fits and same_place) or left is None or taken > left * share:
            break
        best = grown
    return best


def _larger_sizes(layout: Layout, settings: PlanSettings, base: ContextSize, *, on_card: bool) -> Iterator[ContextSize]:
    longest = layout.trained_context or BASE_TOKENS
    before = base
    for slots, tokens in _GROWTH:
        if not on_card and (slots > _SYSTEM_SLOTS or tokens > BASE_TOKENS):
            return
        size = replace(
            base,
            slots=settings.slots or slots,
            tokens=base.tokens if settings.context_tokens else min(max(tokens, base.tokens), longest),
        )
        if size != before:
            yield size
        before = size


def _left_bytes(plan: Plan) -> int | None:
    if plan.shares:
        return min(share.free_bytes - share.needed_bytes for share in plan.shares) * len(plan.shares)
    return None if plan.system_free_bytes is None else plan.system_free_bytes - plan.system_bytes


def _total_bytes(plan: Plan) -> int:
    return plan.device_bytes + plan.system_cache_bytes + plan.system_other_bytes


def _place(
    layout: Layout,
    rooms: Sequence[DeviceRoom],
    system_free_bytes: int | None,
    settings: PlanSettings,
    size: ContextSize,
) -> Plan:
    """Return the plan with most layers on the devices for a size of the context; if none fits, the smallest one."""
    costs = _costs_of(layout, size)
    last: Plan | None = None
    for gpu_layers, expert_layers in _placements(layout, settings, costs.layers, bool(rooms)):
        shares = _share_out(costs, rooms, gpu_layers, expert_layers)
        fits_devices = shares is not None
        if shares is None:
            if settings.gpu_layers is None:
                continue
            shares = _overfull_shares(costs, rooms, gpu_layers, expert_layers)
        plan = _plan_of(costs, shares, gpu_layers, expert_layers, system_free_bytes, size)
        in_system = plan.system_bytes + (plan.device_bytes if any(room.is_system for room in rooms) else 0)
        last = replace(plan, fits=fits_devices and (system_free_bytes is None or in_system <= system_free_bytes))
        if last.fits:
            return last
    assert last, "the placement without a device has no share that could be refused"
    return last


def _placements(layout: Layout, settings: PlanSettings, layers: int, has_device: bool) -> Iterator[tuple[int, int]]:
    """Yield numbers of layers on devices and of layers whose experts are in system memory, the best first."""
    repeating = layers - 1
    most = min(layers, layers if settings.gpu_layers is None else settings.gpu_layers) if has_device else 0
    least = 0 if settings.gpu_layers is None else most
    is_mixture = layout.is_expert_mixture and has_device
    with_experts = settings.experts != "system" or not is_mixture
    if with_experts:
        yield most, 0
    if is_mixture and settings.experts == "auto" and most:
        yield from ((most, moved) for moved in range(layers - most + 1, repeating))
    moved = repeating if is_mixture and settings.experts != "device" else 0
    for gpu_layers in range(most, least - 1, -1):
        if moved or gpu_layers < most:
            yield gpu_layers, moved if gpu_layers else 0


def _costs_of(layout: Layout, size: ContextSize) -> _Costs:
    def sums(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(accumulate(values, initial=0))

    def maxima(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(accumulate(values, max, initial=0))

    return _Costs(
        weights=sums((*(layer.weight_bytes for layer in layout.layers), layout.output_bytes)),
        experts=sums((*(layer.expert_bytes for layer in layout.layers), 0)),
        caches=sums((*(cache_bytes(layer, size) for layer in layout.layers), 0)),
        input_bytes=layout.input_bytes,
        shared_bytes=layout.shared_bytes,
        compute=compute_bytes(layout, size),
        largest=maxima(layer.largest_bytes for layer in layout.layers),
        largest_expert=maxima(layer.largest_expert_bytes for layer in layout.layers),
    )


def _share_out(
    costs: _Costs, rooms: Sequence[DeviceRoom], gpu_layers: int, expert_layers: int
) -> tuple[DeviceShare, ...] | None:
    """Return shares of the last layers in proportion to the memory of the devices; None if they do not fit."""
    if not gpu_layers:
        return ()
    limits = [int(room.free_bytes * (1 - _SPARE_SHARE)) for room in rooms]
    full = _fill(costs, rooms, limits, gpu_layers, expert_layers)
    if full is None or len(rooms) == 1:
        return full
    low, high, best = 0.0, 1.0, full
    for _ in range(_BISECTIONS):  # the smallest share of each device's memory with which all layers fit
        middle = (low + high) / 2
        shares = _fill(costs, rooms, [int(limit * middle) for limit in limits], gpu_layers, expert_layers)
        if shares is None:
            low = middle
        else:
            high, best = middle, shares
    return best


def _fill(
    costs: _Costs, rooms: Sequence[DeviceRoom], limits: Sequence[int], gpu_layers: int, expert_layers: int
) -> tuple[DeviceShare, ...] | None:
    """Fill one device after the other with layers in their order, each up to its limit; None if some are left."""
    at = costs.layers - gpu_layers
    compute = costs.device_compute(gpu_layers, expert_layers)
    shares = []
    for room, limit in zip(rooms, limits, strict=True):
        end, spare = at, limit - room.driver_bytes - compute
        while end < costs.layers and costs.placed(at, end + 1, expert_layers) <= spare:
            end += 1
        if end > at:
            shares.append(_share(costs, room, at, end, expert_layers, compute))
        at = end
    return tuple(shares) if at == costs.layers else None


def _overfull_shares(
    costs: _Costs, rooms: Sequence[DeviceRoom], gpu_layers: int, expert_layers: int
) -> tuple[DeviceShare, ...]:
    """Return shares by free memory, whether they fit or not."""
    total = sum(room.free_bytes for room in rooms) or 1
    ends = [round(gpu_layers * part / total) for part in accumulate(room.free_bytes for room in rooms)]
    ends[-1] = gpu_layers
    first = costs.layers - gpu_layers
    borders = [first, *(first + end for end in ends)]
    pairs = zip(rooms, borders, borders[1:], strict=False)
    compute = costs.device_compute(gpu_layers, expert_layers)
    return tuple(_share(costs, room, start, end, expert_layers, compute) for room, start, end in pairs if end > start)


def _share(costs: _Costs, room: DeviceRoom, first: int, last: int, expert_layers: int, compute: int) -> DeviceShare:
    return DeviceShare(
        where=room.where,
        layers=last - first,
        weight_bytes=costs.weights_in(first, last, expert_layers),
        cache_bytes=costs.caches[last] - costs.caches[first],
        compute_bytes=compute,
        driver_bytes=room.driver_bytes,
        free_bytes=room.free_bytes,
    )


def _plan_of(
    costs: _Costs,
    shares: tuple[DeviceShare, ...],
    gpu_layers: int,
    expert_layers: int,
    system_free_bytes: int | None,
    size: ContextSize,
) -> Plan:
    first = costs.layers - gpu_layers
    moved = max(first, expert_layers)
    here = costs.weights[first] + costs.experts[moved] - costs.experts[first]
    if not gpu_layers:
        here -= costs.shared_bytes
    return Plan(
        gpu_layers=gpu_layers,
        layers=costs.layers,
        shares=shares,
        expert_layers=expert_layers,
        system_weight_bytes=costs.input_bytes + here,
        system_cache_bytes=costs.caches[first],
        system_other_bytes=costs.compute + system_bytes(),
        system_free_bytes=system_free_bytes,
        slots=size.slots,
        context_tokens=size.tokens,
        kv_cache=size.cache_type,
        flash_attention=size.flash_attention,
        fits=True,
    )
