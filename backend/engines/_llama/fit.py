"""Fit a load into the memory that is free in the worker: a plan, one retry with fewer layers, and measured buffers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from backend.common.errors import OutOfMemory
from backend.common.formats.gguf import Layout, read_layout
from backend.common.memory_plan import DeviceRoom, Plan, PlanOrder, PlanSettings, make_plan
from backend.common.memory_plan.buffers import ContextSize, compute_bytes
from backend.common.system.resources import memory_free_bytes
from backend.common.types import DeviceLayers, MeasuredBuffers, MemoryFit
from backend.devices import split_id
from backend.engines import LoadRequest, Session
from backend.engines._llama.library import Library, LibraryDevice
from backend.engines._llama.loaded_model import (
    CARD_CHUNK_TOKENS,
    PROMPT_CHUNK_TOKENS,
    LoadedModel,
    is_host,
    load_model,
    places,
)

SessionType = TypeVar("SessionType", bound=Session)
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size =\s+([\d.]+) MiB")
_MIB = 1 << 20
_RETRY_SHARE = 0.15  # of weights and caches: that much less for the second attempt, about one layer in seven
_DRIVER_BYTES = 128_000_000  # of a card, before it was measured: handles and work space, once the context is there
_DRIVER_LIMIT = 2_000_000_000  # more was taken by another program meanwhile
_REMEDY = (
    "Set text.gpu_layers to auto or to a smaller number, lower text.context_tokens or text.slots, set text.kv_cache to "
    "q8_0, close other programs, or choose a smaller model."
)


@dataclass(frozen=True)
class FittedLoad:
    """A loaded model with the request as it was loaded. `fit` and `measured` are None for an unknown architecture."""

    loaded: LoadedModel
    request: LoadRequest
    fit: MemoryFit | None = None
    measured: MeasuredBuffers | None = None

    def note_in(self, session: SessionType) -> SessionType:
        """Set the sizes of a session to those that were loaded, and return it."""
        session.slots, session.context_tokens = self.request.slots, self.request.context_tokens
        session.fit, session.measured = self.fit, self.measured
        return session


def load_fitted(
    library: Library, request: LoadRequest, devices: Sequence[LibraryDevice], makes_embeddings: bool
) -> FittedLoad:
    """Load a file with as many layers, sequences and as much context as fit. Raises what `load_model` raises.

    If the memory does not suffice after all, it tries once more with less.
    """
    layout = read_layout(Path(request.model_path))
    if request.order is None or layout is None or not layout.caches_are_known:
        return FittedLoad(load_model(library, request, devices, makes_embeddings), request)
    fitter = _Fitter(library, request, request.order, devices, layout, makes_embeddings)
    plan = fitter.plan()
    if not plan.fits:
        raise _does_not_fit(request, plan)
    if fitter.leaves_device_empty(plan):
        raise _does_not_fit(request, fitter.least())
    try:
        return fitter.load(plan)
    except OutOfMemory as error:
        smaller = fitter.smaller(plan)
        if smaller is None:
            raise
        return fitter.load(smaller, _describe_failure(plan, request, error))


class _Fitter:
    """Plans and loads one model."""

    def __init__(
        self,
        library: Library,
        request: LoadRequest,
        order: PlanOrder,
        devices: Sequence[LibraryDevice],
        layout: Layout,
        makes_embeddings: bool,
    ) -> None:
        self._library, self._request, self._order, self._devices = library, request, order, devices
        self._layout, self._makes_embeddings = layout, makes_embeddings
        self._backend = split_id(request.device)[0]
        self._corrections = order.corrections_for(library.title, self._backend)
        self._settings = self._settings_of(request, order.settings)
        wheres = places(request, devices)
        self._rooms = [self._room(device, where) for device, where in zip(devices, wheres, strict=True)]

    def plan(self) -> Plan:
        """Return the plan for the memory that is free now."""
        return make_plan(self._layout, self._rooms, self._system_free(), self._settings, self._corrections)

    def leaves_device_empty(self, plan: Plan) -> bool:
        """Return whether not one layer fits a device, although the user did not ask for that."""
        return bool(self._devices) and not plan.gpu_layers and self._settings.gpu_layers is None

    def least(self) -> Plan:
        """Return the plan with one layer on the devices."""
        return make_plan(self._layout, self._rooms, None, replace(self._settings, gpu_layers=1), self._corrections)

    def smaller(self, plan: Plan) -> Plan | None:
        """Return a plan for less memory than one that failed; None if there is none, or if the user set the size."""
        if plan.shares:
            limits = {
                share.where: share.needed_bytes - int((share.weight_bytes + share.cache_bytes) * _RETRY_SHARE)
                for share in plan.shares
            }
            rooms = [replace(room, free_bytes=limits.get(room.where, room.free_bytes)) for room in self._rooms]
            found = make_plan(self._layout, rooms, self._system_free(), self._settings, self._corrections)
        else:
            limit = plan.system_bytes - plan.system_cache_bytes // 2
            found = make_plan(self._layout, [], limit, self._settings, self._corrections)
        is_smaller = found.device_bytes + found.system_cache_bytes < plan.device_bytes + plan.system_cache_bytes
        return found if found.fits and is_smaller and not self.leaves_device_empty(found) else None

    def load(self, plan: Plan, retried: str | None = None) -> FittedLoad:
        """Load by a plan. Raises OutOfMemory."""
        request = self._ordered(plan)
        free_before = sum(device.free_bytes for device in self._library.devices() if device.handle in self._handles)
        # Without layers on it, a device would still get a compute buffer and large products.
        devices = self._devices if plan.gpu_layers else ()
        loaded = load_model(self._library, request, devices, self._makes_embeddings)
        buffers = _buffers(loaded, request.device)
        fit = MemoryFit(
            gpu_layers=plan.gpu_layers,
            layers=plan.layers,
            is_partial=bool(self._devices) and (not plan.is_whole or self._settings.gpu_layers is not None),
            devices=self._layers(plan, buffers),
            expert_layers=plan.expert_layers,
            kv_cache=plan.kv_cache,
            explanation=plan.explain(),
            retried=retried,
        )
        return FittedLoad(loaded, request, fit, self._measured(plan, buffers, free_before))

    @property
    def _handles(self) -> list[int]:
        return [device.handle for device in self._devices]

    def _settings_of(self, request: LoadRequest, settings: PlanSettings) -> PlanSettings:
        if self._makes_embeddings:  # a text is computed in one piece
            context = request.context_tokens
            return replace(settings, slots=request.slots, context_tokens=context, batch_tokens=context)
        return replace(settings, batch_tokens=CARD_CHUNK_TOKENS if self._devices else PROMPT_CHUNK_TOKENS)

    def _room(self, device: LibraryDevice, where: str) -> DeviceRoom:
        limit = self._order.limit_bytes
        free = device.free_bytes if limit is None else min(device.free_bytes, limit)
        driver = _DRIVER_BYTES if self._corrections.driver_bytes is None else self._corrections.driver_bytes
        return DeviceRoom(where, free, driver)

    def _system_free(self) -> int | None:
        limit = None if self._devices else self._order.limit_bytes
        return min((size for size in (memory_free_bytes(), limit) if size is not None), default=None)

    def _ordered(self, plan: Plan) -> LoadRequest:
        layers = {share.where: share.layers for share in plan.shares}
        llama = replace(
            self._request.llama,
            gpu_layers=plan.gpu_layers if self._devices else None,
            split=tuple(float(layers.get(room.where, 0)) for room in self._rooms) if len(self._rooms) > 1 else (),
            cache_type_k=plan.kv_cache,
            cache_type_v=plan.kv_cache,
            flash_attention="auto" if plan.kv_cache == "f16" else "on",
            expert_layers_in_memory=plan.expert_layers,
        )
        return replace(self._request, context_tokens=plan.context_tokens, slots=plan.slots, llama=llama)

    def _layers(self, plan: Plan, buffers: dict[str, dict[str, int]]) -> list[DeviceLayers]:
        counts = {share.where: share.layers for share in plan.shares}
        counts["cpu"] = plan.layers - plan.gpu_layers
        return [
            DeviceLayers(where, counts.get(where, 0), sum(kinds.values()))
            for where, kinds in buffers.items()
            if sum(kinds.values())
        ]

    def _measured(self, plan: Plan, buffers: dict[str, dict[str, int]], free_before: int) -> MeasuredBuffers | None:
        """Return what the buffers took: of one device, where no part of the model is copied there for a while."""
        if len(self._devices) > 1 or (self._devices and not plan.is_whole):
            return None
        where = plan.shares[0].where if plan.shares else "cpu"
        batch = self._settings.batch_tokens
        size = ContextSize(plan.context_tokens, plan.slots, plan.kv_cache, plan.flash_attention, batch)
        measured = buffers.get(where, {}).get("compute", 0)
        if not measured:
            return None
        driver = None
        if self._devices:
            after = sum(device.free_bytes for device in self._library.devices() if device.handle in self._handles)
            driver = free_before - after - sum(buffers[where].values())
            driver = driver if 0 <= driver <= _DRIVER_LIMIT else None
        ratio = measured / compute_bytes(self._layout, size)
        return MeasuredBuffers(self._library.title, self._backend, ratio, driver)


def _buffers(loaded: LoadedModel, device: str) -> dict[str, dict[str, int]]:
    """Return the bytes of the buffers in the load log, by place and kind."""
    found: dict[str, dict[str, int]] = {}
    for name, kind, mib in _BUFFER.findall(loaded.log):
        where = "cpu" if is_host(name) else loaded.names.get(name, device)
        kinds = found.setdefault(where, {})
        kinds[kind] = kinds.get(kind, 0) + round(float(mib) * _MIB)
    return found


def _does_not_fit(request: LoadRequest, plan: Plan) -> OutOfMemory:
    name = Path(request.model_path).name
    return OutOfMemory(f"{name} does not fit into the memory of {request.device}. {plan.explain()}", _REMEDY)


def _describe_failure(plan: Plan, request: LoadRequest, error: OutOfMemory) -> str:
    size = f"{plan.gpu_layers} of {plan.layers} layers" if plan.shares else f"a context of {plan.context_tokens} tokens"
    return f"A first attempt with {size} × {plan.slots} on {request.device} ran out of memory: {error.detail}"
