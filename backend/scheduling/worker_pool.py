"""The loaded models. A model is loaded if it fits beside the others; if not, those unused longest make room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.child.handle import Spawn
from backend.common.compile_cache import cache_for
from backend.common.config.settings import Settings
from backend.common.data_dir import scratch_prefix
from backend.common.device_api import DetectedDevice
from backend.common.errors import DeviceNotReady, OutOfMemory
from backend.common.hardware.free_memory import card_free_bytes
from backend.common.system.resources import memory_free_bytes, usable_threads
from backend.common.types import Device
from backend.devices import has_compile_cache
from backend.engines import LoadRequest, engines, load_engine
from backend.scheduling.worker import Limits, Worker, WorkerKey, ignore_frame

log = logging.getLogger(__name__)
OnLoad = Callable[[int, int | None], Awaitable[None]]
SLOW_DISK_BYTES_PER_S = 50e6  # large models get that much more time to load
HANDOVER_S = 0.2  # within which the next job of the queue takes the model over, also where none is kept


@dataclass(eq=False)
class LoadedModel:
    """A worker in the pool. `card_bytes` is what it took of a card's own memory, measured or else reckoned."""

    worker: Worker
    queue_id: str
    card_bytes: int | None = None
    users: int = 0
    used_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def memory_bytes(self) -> int:
        """What unloading it would free where its model lies."""
        return (self.worker.resident_bytes or 0) if self.card_bytes is None else self.card_bytes


class WorkerPool:
    """Workers by key. Whoever loads or uses one holds a turn of its lane."""

    def __init__(
        self,
        settings: Settings,
        pythons: Mapping[str, str],
        spawn: Spawn,
        free_bytes: Callable[[], int | None] = memory_free_bytes,
        found: Callable[[str, str], DetectedDevice | None] = lambda device, runtime: None,
        card_free_bytes: Callable[[str], int | None] = card_free_bytes,
        driver: Callable[[str], str | None] = lambda hardware_id: None,
    ) -> None:
        """`card_free_bytes` is asked, in a thread, with the id of a hardware that has memory of its own."""
        self._settings = settings
        self._pythons = pythons
        self._spawn = spawn
        self._free_bytes = free_bytes
        self._card_free_bytes = card_free_bytes
        self._driver = driver  # of a hardware
        self._found = found  # a device as a runtime lists it
        self._held: dict[WorkerKey, LoadedModel] = {}
        self._measured: dict[WorkerKey, int] = {}  # the most that it was seen to take, which corrects the estimate
        self._closing: set[asyncio.Task[None]] = set()
        self._starting: list[str] = []  # the runtimes of workers that load

    def holders_of(self, model: str) -> list[LoadedModel]:
        """The workers that hold a model."""
        return [held for key, held in self._held.items() if key.model == model]

    def joinable_engine(self, device: str, model: str, names: Sequence[str]) -> str | None:
        """The engine, of these, by which jobs run a model on a device now that others can join, if there is one."""
        used = [held.worker.key for held in self.holders_of(model) if held.users and self._settings.text.slots > 1]
        running = [key.engine for key in used if key.device == device and engines()[key.engine].batches]
        return next((name for name in names if name in running), None)

    def loaded_models(self) -> list[LoadedModel]:
        """All that is loaded."""
        return list(self._held.values())

    def workers(self) -> list[Worker]:
        """All workers that hold a model."""
        return [held.worker for held in self._held.values()]

    def of_runtime(self, runtime: str) -> list[LoadedModel]:
        """The workers that run in a runtime."""
        return [held for key, held in self._held.items() if key.runtime == runtime]

    def runtime_in_use(self, runtime: str) -> bool:
        """Whether a job uses a worker of a runtime, or waits for one that loads."""
        return runtime in self._starting or any(held.users for held in self.of_runtime(runtime))

    def occupies(self, device: str) -> bool:
        """Whether a model is loaded on that device."""
        return any(held.worker.alive and key.device == device for key, held in self._held.items())

    def is_loaded(self, key: WorkerKey) -> bool:
        """Whether that very model is loaded."""
        held = self._held.get(key)
        return held is not None and held.worker.alive

    async def acquire(
        self, lane: str, device: Device, key: WorkerKey, model_path: Path, on_load: OnLoad = ignore_frame
    ) -> tuple[LoadedModel, float]:
        """The worker for `key`, loaded and kept until `released`, and the seconds that loading took.

        `on_load` is called while it loads with the bytes it holds and those it will need, where they are known.
        Raises OutOfMemory, with nothing unloaded, where it cannot fit; and what `Worker.load` raises.
        """
        held = self._held.get(key)
        if held and not held.worker.alive:
            await held.unused.wait()  # what it still does is not cut short
            await self._drop(held)
            held = None
        seconds = 0.0
        if held is None:
            start = asyncio.get_running_loop().time()
            held = self._held[key] = await self._load(lane, device, key, model_path, on_load)
            seconds = asyncio.get_running_loop().time() - start
            log.info("model loaded", extra={"model": key.model, "device": key.device, "seconds": round(seconds, 3)})
        self._take(held)
        return held, seconds

    def try_acquire(self, key: WorkerKey) -> LoadedModel | None:
        """The worker for `key`, kept until `released`, if its model is loaded."""
        held = self._held.get(key)
        if held is None or not held.worker.alive:
            return None
        self._take(held)
        return held

    @staticmethod
    def _take(held: LoadedModel) -> None:
        held.users += 1
        held.unused.clear()
        if held.timer:
            held.timer.cancel()

    def release(self, held: LoadedModel) -> None:
        """Ends a use; from the last one on the clock runs after which the model is unloaded."""
        held.users -= 1
        held.used_at = asyncio.get_running_loop().time()
        if peak := held.worker.peak_bytes if held.card_bytes is None else held.card_bytes:
            self._measured[held.worker.key] = max(peak, self._measured.get(held.worker.key, 0))
        if not held.users:
            held.unused.set()
            keep_s = max(self._settings.text.keep_alive_s, HANDOVER_S)
            held.timer = asyncio.get_running_loop().call_later(keep_s, self._unload_soon, held)

    async def unload(self, held: LoadedModel) -> None:
        """Ends a worker; one that is gone already is no trouble."""
        if self._held.get(held.worker.key) is held:
            await self._drop(held)

    async def close(self) -> None:
        """Ends all workers."""
        await asyncio.gather(*(self._drop(held) for held in list(self._held.values())))
        await asyncio.gather(*self._closing)

    async def _load(self, lane: str, device: Device, key: WorkerKey, model_path: Path, on_load: OnLoad) -> LoadedModel:
        if key.runtime not in self._pythons:  # removed while the job waited
            raise DeviceNotReady(f"The runtime {key.runtime} is here no more.", "See `runtimes` for what is installed.")
        text, supervision = self._settings.text, self._settings.supervision
        rules = self._settings.devices.get(device.id)
        driver = self._driver(device.hardware_id or "")
        compiled_for = (device.id, device.hardware_id, driver, device.versions, self._pythons[key.runtime])
        request = LoadRequest(
            device=key.device,
            model_path=str(model_path),
            context_tokens=text.context_tokens,
            threads=text.threads or usable_threads(),
            slots=text.slots,
            detected_device=self._found(key.device, key.runtime),
            provider_options=dict(rules.provider_options) if rules else {},
            operator_libraries=[str(library) for library in self._settings.onnx.operator_libraries],
            cache=cache_for(self._settings.data_dir, *compiled_for) if has_compile_cache(device.backend) else "",
        )
        estimate = load_engine(key.engine).estimate_bytes(request.model_path, request.context_tokens, request.slots)
        needed = max(estimate or 0, self._measured.get(key, 0)) or None
        before = await self._on_card(lane, device)
        least = least_bytes(key.engine, request.model_path, device, needed)
        victims = self._victims(lane, device, key, needed, least, before)
        for victim in victims:
            log.info("model unloaded to make room", extra={"model": victim.worker.key.model, "for": key.model})
            await self._drop(victim)
        if victims:
            before = await self._on_card(lane, device)
        load_s = supervision.load_s + (estimate or 0) / SLOW_DISK_BYTES_PER_S
        limits = Limits(supervision.silence_s, load_s, supervision.step_s, supervision.cancel_s)
        prefix = scratch_prefix(self._settings.data_dir)
        worker = Worker(key, self._pythons[key.runtime], limits, self._spawn, prefix)
        self._starting.append(key.runtime)
        try:
            request = replace(request, card_free_bytes=before)
            await worker.load(key.engine, request, lambda held_bytes: on_load(held_bytes, needed))
        finally:
            self._starting.remove(key.runtime)
        if _shared(device):
            return LoadedModel(worker, lane)
        after = await self._on_card(lane, device)
        took = before - after if before is not None and after is not None else 0
        return LoadedModel(worker, lane, card_bytes=took if took > 0 else needed or 0)

    async def _on_card(self, lane: str, device: Device) -> int | None:
        """Bytes that are free now in a card's own memory, as far as the system tells."""
        return None if _shared(device) else await asyncio.to_thread(self._card_free_bytes, lane)

    def _victims(
        self, lane: str, device: Device, key: WorkerKey, needed: int | None, least: int | None, on_card: int | None
    ) -> list[LoadedModel]:
        """Whom to unload, the one unused longest first, and no more than is needed. `least` has to be had."""
        here = [held for held in self._held.values() if held.queue_id == lane]
        idle = sorted((held for held in here if not held.users), key=lambda held: held.used_at)
        free = self._room(device, here, on_card)
        if needed is None or free is None:
            return idle  # nothing can be reckoned: one model at a time
        victims: list[LoadedModel] = []
        while needed > free and idle:
            victims.append(idle.pop(0))
            free += victims[-1].memory_bytes
        if (wanted := least or needed) > free:
            shorter = "Lower text.context_tokens. " if "text" in engines()[key.engine].tasks else ""
            raise OutOfMemory(
                f"{key.model} needs about {wanted / 1e6:.0f} MB on {device.id}, and {free / 1e6:.0f} MB can be had.",
                f"{shorter}Close other programs, or choose a smaller model or another device.",
                needed_bytes=needed,
                free_bytes=free,
            )
        return victims

    def available_bytes(self, lane: str, device: Device) -> int | None:
        """Bytes that could be had for a model now, if idle ones made room; None where nothing tells."""
        here = [held for held in self._held.values() if held.queue_id == lane]
        free = self._room(device, here, None)
        return None if free is None else free + sum(held.memory_bytes for held in here if not held.users)

    def _room(self, device: Device, here: list[LoadedModel], on_card: int | None) -> int | None:
        """Bytes that a new worker may take now.

        Where nothing tells what is free on a card, it is what was free at its proof, when none of ours was there,
        without what ours have taken since.
        """
        free = self._free_bytes() if _shared(device) else on_card
        if free is None and not _shared(device) and device.memory_free_bytes is not None:
            free = max(0, device.memory_free_bytes - sum(held.memory_bytes for held in here))
        rules = self._settings.devices.get(device.id)
        if rules and rules.memory_limit:
            rest = max(0, rules.memory_limit - sum(held.memory_bytes for held in here))
            return rest if free is None else min(free, rest)
        return free

    async def _drop(self, held: LoadedModel) -> None:
        self._held.pop(held.worker.key, None)
        if held.timer:
            held.timer.cancel()
        await held.worker.close()

    def _unload_soon(self, held: LoadedModel) -> None:
        if held.users:
            return
        task = asyncio.get_running_loop().create_task(self.unload(held))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def least_bytes(engine: str, model_path: str, device: Device, needed: int | None) -> int | None:
    """What a model has to have on a device: less than it needs on a card where its parts can come there in turns."""
    tell: Callable[[str], int] | None = getattr(load_engine(engine), "least_bytes", None)
    return needed if tell is None or _shared(device) else tell(model_path)


def _shared(device: Device) -> bool:
    """Whether it works in the machine's own memory, as emulated ones do too."""
    return device.kind in ("cpu", "integrated", "emulated")
