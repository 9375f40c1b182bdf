"""The worker pool: the loaded models. To load one that does not fit, the least recently used ones are evicted (LRU)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from backend.child.handle import Spawn
from backend.child.model_files import CHANGED
from backend.common.bounded_reads import NoAnswer, bounded_read, silent_folder
from backend.common.commands import command
from backend.common.compile_cache import cache_for
from backend.common.config.settings import Settings
from backend.common.data_dir import scratch_prefix
from backend.common.device_api import DetectedDevice
from backend.common.engine_api import LoraAdapter
from backend.common.errors import DeviceNotReady, ModelBroken, ModelIncompatible, OutOfMemory
from backend.common.memory_plan import Corrections, Plan, PlanOrder
from backend.common.system.resources import memory_free_bytes, usable_threads
from backend.common.types import Device, ModelFile
from backend.devices import has_compile_cache
from backend.engines import LoadRequest, engines
from backend.scheduling.buffer_history import BufferHistory
from backend.scheduling.card_sensors import card_free_bytes
from backend.scheduling.load_size import GpuLayers, LoadSize, find_load_size, plan_settings, uses_machine_memory
from backend.scheduling.worker import Limits, Worker, WorkerKey, find_change, ignore_frame

log = logging.getLogger(__name__)
OnLoad = Callable[[int, int | None], Awaitable[None]]
Argument = TypeVar("Argument")
Result = TypeVar("Result")
DISK_LIMIT_S = 1.0  # for looking at the files of a loaded model before a job
SLOW_DISK_BYTES_PER_S = 50e6  # the load timeout grows with the model at this rate
BUFFERS = Path("buffers.json")  # sizes that loads measured, in the data folder
VERDICTS = Path("cache") / "checks"  # results of text models' checks, in the data folder
CHECK_S = 60.0  # more time for a load on a card, where a text model is compared with the CPU once
MODEL_READ_S = 10.0  # timeout of reading the headers of a model's files
HANDOVER_S = 0.2  # a model stays loaded this long for the next job in the queue, even with keep_alive_s: 0


@dataclass(eq=False)
class LoadedModel:
    """A worker in the pool. `card_bytes` is what it takes of a card's own memory, measured or else estimated.

    `outdated`: optional, why no further job may use it. Its last jobs end with what they began with.
    """

    worker: Worker
    queue_id: str
    model_path: Path
    card_bytes: int | None = None
    outdated: str | None = None
    users: int = 0
    used_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    checking: asyncio.Future[ModelFile | None] | None = None  # of its files
    disk_hangs: bool = False  # the disk has not answered that within the limit
    gpu_layers: GpuLayers | None = None  # that a request asked for. None: by the settings

    @property
    def is_usable(self) -> bool:
        """Whether the next job may use it, as far as it is known."""
        return self.worker.alive and self.outdated is None

    @property
    def slots(self) -> int:
        """How many jobs it runs at once."""
        return self.worker.loaded.slots if self.worker.loaded else 1

    @property
    def memory_bytes(self) -> int:
        """The memory that an eviction would free."""
        return (self.worker.resident_bytes or 0) if self.card_bytes is None else self.card_bytes


class WorkerPool:
    """Workers by key. A caller that loads or uses one holds a turn in the device's queue."""

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
        """`free_bytes` returns the free memory of the machine; `card_free_bytes`, called in a thread, that of a card.

        `found` returns a device as a runtime lists it, `driver` the driver of a hardware.
        """
        self._settings = settings
        self._pythons = pythons
        self._spawn = spawn
        self._free_bytes = free_bytes
        self._card_free_bytes = card_free_bytes
        self._driver = driver
        self._found = found
        self._held: dict[WorkerKey, LoadedModel] = {}
        self._measured: dict[tuple[WorkerKey, int], int] = {}  # by slots, the peak of earlier workers
        self._buffers = BufferHistory(settings.data_dir / BUFFERS)
        self._closing: set[asyncio.Task[None]] = set()
        self._loading_runtimes: list[str] = []

    def holders_of(self, model: str) -> list[LoadedModel]:
        """Return the workers that hold a model."""
        return [held for key, held in self._held.items() if key.model == model]

    def joinable_engine(self, device: str, model: str, names: Sequence[str]) -> str | None:
        """Return the first of these engines that runs a batch with the model on a device now, which a job can join."""
        used = [held.worker.key for held in self.holders_of(model) if held.users and held.slots > 1]
        running = [key.engine for key in used if key.device == device and engines()[key.engine].batches]
        return next((name for name in names if name in running), None)

    def slots_for(self, key: WorkerKey) -> int:
        """Return how many jobs a worker runs at once; before it is loaded, the setting, or 1 for `auto`."""
        held = self._held.get(key)
        if held is not None and held.is_usable:
            return held.slots
        slots = self._settings.text.slots
        return 1 if isinstance(slots, str) else slots

    def shares_workers(self, model: str) -> bool:
        """Return whether jobs of a model can share a worker, as far as it is known."""
        loaded = [held.slots for held in self.holders_of(model)]
        return max(loaded) > 1 if loaded else self._settings.text.slots != 1

    def loaded_models(self) -> list[LoadedModel]:
        """Return all loaded models."""
        return list(self._held.values())

    def workers(self) -> list[Worker]:
        """Return all workers that hold a model."""
        return [held.worker for held in self._held.values()]

    def of_runtime(self, runtime: str) -> list[LoadedModel]:
        """Return the workers that run in a runtime."""
        return [held for key, held in self._held.items() if key.runtime == runtime]

    def runtime_in_use(self, runtime: str) -> bool:
        """Return whether a job uses a worker of a runtime, or waits for one that loads."""
        return runtime in self._loading_runtimes or any(held.users for held in self.of_runtime(runtime))

    def occupies(self, device: str) -> bool:
        """Return whether a model is loaded on that device."""
        return any(held.worker.alive and key.device == device for key, held in self._held.items())

    def is_loaded(self, key: WorkerKey) -> bool:
        """Return whether the worker with this key is ready."""
        held = self._held.get(key)
        return held is not None and held.is_usable

    async def acquire(
        self,
        hardware_id: str,
        device: Device,
        key: WorkerKey,
        model_path: Path,
        on_load: OnLoad = ignore_frame,
        job_id: str | None = None,
        gpu_layers: GpuLayers | None = None,
    ) -> tuple[LoadedModel, float]:
        """Return the worker for `key`, loaded and kept until `release`, and the seconds that loading took.

        `on_load` is a callback while it loads, with the bytes that it holds and those that it needs, None if unknown.
        `job_id` is the job that needs the model, for the log. `gpu_layers`: layers on the card; None takes the model as
        it is loaded, or loads it by the settings. All are optional.
        A model whose files were replaced is loaded again, once the jobs that use it have ended.
        Raises OutOfMemory, without an eviction, where the model cannot fit, and what `Worker.load` raises.
        """
        if held := await self.try_acquire(key, model_path, gpu_layers):
            return held, 0.0
        if held := self._held.get(key):
            if held.users:
                await held.unused.wait()  # its last jobs end first
            if held.outdated:
                self._measured = {subject: size for subject, size in self._measured.items() if subject[0] != key}
            await self._drop(held, held.outdated or "its process had ended", job_id)
        start = asyncio.get_running_loop().time()
        self._loading_runtimes.append(key.runtime)
        try:
            held = self._held[key] = await self._load_unchanged(
                hardware_id, device, key, model_path, on_load, job_id, gpu_layers
            )
        finally:
            self._loading_runtimes.remove(key.runtime)
        self._take(held)
        return held, asyncio.get_running_loop().time() - start

    async def try_acquire(
        self, key: WorkerKey, model_path: Path, gpu_layers: GpuLayers | None = None
    ) -> LoadedModel | None:
        """Return the worker for `key` if the model as it is on disk now is loaded, and keep it until `release`.

        `gpu_layers`: optional, as for `acquire`.
        """
        held = self._held.get(key)
        if held is None or not held.is_usable:
            return None
        if gpu_layers is not None and gpu_layers != held.gpu_layers and key.device != "cpu":
            self.discard(held, f"a job asks for gpu_layers: {gpu_layers}")
            return None
        if changed := await self._find_change(held, model_path):
            log.info("model changed", extra={"model": key.model, "device": key.device, "cause": changed})
            self.discard(held, changed)
        if not held.is_usable or self._held.get(key) is not held:  # it may have been evicted meanwhile
            return None
        self._take(held)
        return held

    def discard(self, held: LoadedModel, cause: str) -> None:
        """Let no further job use a worker. It ends with its last job; `cause` is for the log."""
        held.outdated = cause

    async def _find_change(self, held: LoadedModel, model_path: Path) -> str | None:
        """Return why the model must be loaded again, None if it need not or if the disk does not answer."""
        if held.model_path != model_path:
            return f"it is {model_path} now"
        while held.checking and not held.checking.done():  # for another job, which began earlier
            if not await self._is_answered(held):
                return None
        held.disk_hangs = False
        held.checking = in_daemon_thread(find_change, held.worker.loaded.files if held.worker.loaded else [])
        if not await self._is_answered(held):
            return None
        changed = held.checking.result()
        return f"{changed.path} was replaced, changed or deleted" if changed else None

    @staticmethod
    async def _is_answered(held: LoadedModel) -> bool:
        """Wait for the disk, once for as long as the limit allows; return whether it answered."""
        assert held.checking
        if not held.disk_hangs:
            await asyncio.wait({held.checking}, timeout=DISK_LIMIT_S)
        is_hanging = not held.checking.done()
        if is_hanging and not held.disk_hangs:
            log.warning("disk does not answer", extra={"model": held.worker.key.model, "path": str(held.model_path)})
        held.disk_hangs = is_hanging
        return not is_hanging

    @staticmethod
    def _take(held: LoadedModel) -> None:
        held.users += 1
        held.unused.clear()
        if held.timer:
            held.timer.cancel()

    def release(self, held: LoadedModel) -> None:
        """End a use. After the last one the model is unloaded in `text.keep_alive_s` seconds."""
        held.users -= 1
        held.used_at = asyncio.get_running_loop().time()
        if peak := held.worker.peak_bytes if held.card_bytes is None else held.card_bytes:
            subject = held.worker.key, held.slots
            self._measured[subject] = max(peak, self._measured.get(subject, 0))
        if not held.users:
            held.unused.set()
            if held.outdated:
                self._unload_soon(held, held.outdated)
                return
            keep_s = max(self._settings.text.keep_alive_s, HANDOVER_S)
            held.timer = asyncio.get_running_loop().call_later(keep_s, self._unload_soon, held)

    async def unload(self, held: LoadedModel, cause: str, job_id: str | None = None) -> None:
        """End a worker; no error if it is gone already. `cause` and the job that asked for it are for the log."""
        if self._held.get(held.worker.key) is held:
            await self._drop(held, cause, job_id)

    async def close(self, cause: str) -> None:
        """End all workers. `cause` is for the log."""
        await asyncio.gather(*(self._drop(held, cause) for held in list(self._held.values())))
        await asyncio.gather(*self._closing)

    async def _load_unchanged(
        self,
        hardware_id: str,
        device: Device,
        key: WorkerKey,
        model_path: Path,
        on_load: OnLoad,
        job_id: str | None,
        gpu_layers: GpuLayers | None,
    ) -> LoadedModel:
        """Load the model; once more if a file was replaced meanwhile. Raises ModelBroken if it happens twice."""
        try:
            return await self._load(hardware_id, device, key, model_path, on_load, job_id, gpu_layers)
        except ModelBroken as error:
            if CHANGED not in error.extra:
                raise
            log.warning("model changed while it was loaded", extra={"job": job_id, "model": key.model})
        return await self._load(hardware_id, device, key, model_path, on_load, job_id, gpu_layers)

    async def _load(
        self,
        hardware_id: str,
        device: Device,
        key: WorkerKey,
        model_path: Path,
        on_load: OnLoad,
        job_id: str | None,
        gpu_layers: GpuLayers | None,
    ) -> LoadedModel:
        """Evict what is necessary, log each eviction, and load the model in a new worker."""
        if key.runtime not in self._pythons:  # it was removed while the job waited
            raise DeviceNotReady(
                f"Runtime {key.runtime} is not installed.", f"`{command(f'runtimes install {key.runtime}')}`"
            )
        path = str(model_path)
        await _check_types(key.engine, device, model_path)
        size = await self._find_size(key, path, device, None, gpu_layers)
        needed = max(size.needed_bytes or 0, self._measured.get((key, size.slots), 0)) or None
        before = await self._on_card(hardware_id, device)
        evictions = self._choose_evictions(hardware_id, device, key, needed, size.least_bytes, before)
        expected = (self._free_on(hardware_id, device, before) or 0) + sum(held.memory_bytes for held in evictions)
        for held in evictions:
            evicted = {"model": held.worker.key.model, "bytes": held.memory_bytes}
            log.info("model evicted", extra={"job": job_id, "device": device.id, "for": key.model, **evicted})
            await self._drop(held, f"evicted for {key.model}", job_id)
        if evictions:
            before = await self._on_card(hardware_id, device)
        free = self._free_on(hardware_id, device, before)
        free = None if free is None else max(free, expected)  # the system may count the freed memory later
        size = await self._find_size(key, path, device, free, gpu_layers)
        if size.plan and not size.plan.fits:
            raise _does_not_fit(key.model, device, size.plan)
        limit = self._rest_of_limit(device, self._on_hardware(hardware_id))
        order = PlanOrder(plan_settings(self._settings.text, gpu_layers), limit, dict(self._buffers.all()))
        request = await asyncio.to_thread(self._load_request, device, key, path, before, size, order)
        prefix = scratch_prefix(self._settings.data_dir)
        worker = Worker(key, self._pythons[key.runtime], self._limits(key, needed), self._spawn, prefix)
        await worker.load(key.engine, request, lambda held_bytes: on_load(held_bytes, needed), job_id)
        if worker.loaded and worker.loaded.measured:
            await asyncio.to_thread(self._buffers.add, worker.loaded.measured)
        if uses_machine_memory(device):
            return LoadedModel(worker, hardware_id, model_path, gpu_layers=gpu_layers)
        after = await self._on_card(hardware_id, device)
        taken = before - after if before is not None and after is not None else 0
        taken = taken if taken > 0 else needed or 0
        return LoadedModel(worker, hardware_id, model_path, card_bytes=taken, gpu_layers=gpu_layers)

    def _limits(self, key: WorkerKey, needed: int | None) -> Limits:
        """Return the timeouts of a worker whose model needs so much memory."""
        supervision = self._settings.supervision
        load_s = supervision.load_s + (needed or 0) / SLOW_DISK_BYTES_PER_S
        if key.device != "cpu" and "text" in engines()[key.engine].tasks:
            load_s += CHECK_S
        return Limits(supervision.silence_s, load_s, supervision.step_s, supervision.cancel_s)

    async def _find_size(
        self, key: WorkerKey, path: str, device: Device, free_bytes: int | None, gpu_layers: GpuLayers | None
    ) -> LoadSize:
        """Return the size of a load with so much free memory of the device. Raises ModelBroken."""

        def find() -> LoadSize:
            return find_load_size(
                key.engine,
                path,
                device,
                self._settings.text,
                free_bytes=free_bytes,
                system_free_bytes=None if free_bytes is None else self._free_bytes(),
                corrections=self._buffers.of_backend(device.backend),
                gpu_layers=gpu_layers,
            )

        return await _read_model(path, find)

    def _load_request(
        self,
        device: Device,
        key: WorkerKey,
        model_path: str,
        card_free: int | None,
        size: LoadSize,
        order: PlanOrder,
    ) -> LoadRequest:
        """Return what the worker loads. It makes the folder of the compile cache."""
        text = self._settings.text
        rules = self._settings.devices.get(device.id)
        driver = self._driver(device.hardware_id or "")
        compiled_for = (device.id, device.hardware_id, driver, device.versions, self._pythons[key.runtime])
        return LoadRequest(
            device=key.device,
            model_path=model_path,
            context_tokens=size.context_tokens,
            threads=text.threads or usable_threads(),
            slots=size.slots,
            order=order,
            detected_device=self._found(key.device, key.runtime),
            card_free_bytes=card_free,
            check_bytes=text.check_memory,
            verdict_dir=str((self._settings.data_dir / VERDICTS).resolve()),
            driver=driver,
            provider_options=dict(rules.provider_options) if rules else {},
            adapters=self._adapters(key.model),
            operator_libraries=[str(library) for library in self._settings.onnx.operator_libraries],
            compile_cache_dir=cache_for(self._settings.data_dir, *compiled_for)
            if has_compile_cache(device.backend)
            else "",
        )

    def _adapters(self, model: str) -> list[LoraAdapter]:
        """Return the LoRA adapters that the configuration names for a model."""
        rules = self._settings.models.get(model)
        return [LoraAdapter(str(adapter.path), adapter.scale) for adapter in rules.adapters] if rules else []

    async def _on_card(self, hardware_id: str, device: Device) -> int | None:
        """Return the free bytes in a card's own memory; None if unknown, or if the device uses the machine's memory."""
        return None if uses_machine_memory(device) else await asyncio.to_thread(self._card_free_bytes, hardware_id)

    def _choose_evictions(
        self,
        hardware_id: str,
        device: Device,
        key: WorkerKey,
        needed: int | None,
        least: int | None,
        on_card: int | None,
    ) -> list[LoadedModel]:
        """Return the models to evict, least recently used first, and no more than necessary.

        `needed` bytes are desired, `least` bytes required; `on_card` are the free bytes of a card. Raises OutOfMemory.
        """
        here = self._on_hardware(hardware_id)
        idle = sorted((held for held in here if not held.users), key=lambda held: held.used_at)
        free = self._free_for_worker(device, here, on_card)
        if needed is None or free is None:
            return idle  # without an estimate, one model at a time
        evictions: list[LoadedModel] = []
        while needed > free and idle:
            evictions.append(idle.pop(0))
            free += evictions[-1].memory_bytes
        if (required := least or needed) > free:
            shorter = "Lower text.context_tokens. " if "text" in engines()[key.engine].tasks else ""
            raise OutOfMemory(
                f"{key.model} needs about {required / 1e6:.0f} MB on {device.id}; {free / 1e6:.0f} MB available.",
                f"{shorter}Close other programs, or choose a smaller model or another device.",
                needed_bytes=needed,
                free_bytes=free,
            )
        return evictions

    def available_bytes(self, hardware_id: str, device: Device) -> int | None:
        """Return the bytes that a model could get now, with evictions of idle ones; None if unknown."""
        here = self._on_hardware(hardware_id)
        free = self._free_for_worker(device, here, None)
        return None if free is None else free + sum(held.memory_bytes for held in here if not held.users)

    def system_free_bytes(self) -> int | None:
        """Return the free memory of the machine, None if unknown."""
        return self._free_bytes()

    def corrections_of(self, backend: str) -> Corrections:
        """Return what earlier loads measured on a backend."""
        return self._buffers.of_backend(backend)

    def _on_hardware(self, hardware_id: str) -> list[LoadedModel]:
        return [held for held in self._held.values() if held.queue_id == hardware_id]

    def _free_on(self, hardware_id: str, device: Device, on_card: int | None) -> int | None:
        return self._free_for_worker(device, self._on_hardware(hardware_id), on_card)

    def _free_for_worker(self, device: Device, here: list[LoadedModel], on_card: int | None) -> int | None:
        """Return the bytes that a new worker may take now without an eviction; None if unknown.

        If the free memory of a card is unknown, it is what was free at the device's proof, when no worker was on it,
        minus what workers have taken since.
        """
        free = self._free_bytes() if uses_machine_memory(device) else on_card
        if free is None and not uses_machine_memory(device) and device.memory_free_bytes is not None:
            free = max(0, device.memory_free_bytes - sum(held.memory_bytes for held in here))
        rest = self._rest_of_limit(device, here)
        return min((size for size in (free, rest) if size is not None), default=None)

    def _rest_of_limit(self, device: Device, here: Sequence[LoadedModel]) -> int | None:
        """Return what is left of the user's limit for a device; None without a limit."""
        rules = self._settings.devices.get(device.id)
        if rules is None or not rules.memory_limit:
            return None
        return max(0, rules.memory_limit - sum(held.memory_bytes for held in here))

    async def _drop(self, held: LoadedModel, cause: str, job_id: str | None = None) -> None:
        self._held.pop(held.worker.key, None)
        if held.timer:
            held.timer.cancel()
        await held.worker.close(job_id, cause)

    def _unload_soon(self, held: LoadedModel, cause: str = "text.keep_alive_s ended") -> None:
        if held.users:
            return
        key = held.worker.key
        log.info("idle model unloaded", extra={"model": key.model, "device": key.device})
        task = asyncio.get_running_loop().create_task(self.unload(held, cause))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def in_daemon_thread(function: Callable[[Argument], Result], argument: Argument) -> asyncio.Future[Result]:
    """Run a function that may hang, in a thread that the end of the server does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return
        if error:
            future.set_exception(error)
        else:
            future.set_result(cast("Result", result))

    def work() -> None:
        result, error = None, None
        try:
            result = function(argument)
        except Exception as caught:  # noqa: BLE001 (the caller gets it)
            error = caught
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return future


async def _check_types(engine: str, device: Device, model_path: Path) -> None:
    """Raise ModelIncompatible if a model computes in a data type that the proof found unusable on the device."""
    unusable = device.proof.unusable if device.proof else {}
    file_types = engines()[engine].file_types
    if not unusable or file_types is None:
        return
    needed = await _read_model(str(model_path), partial(file_types, model_path))
    if dtype := next((dtype for dtype in needed if dtype in unusable), None):
        raise ModelIncompatible(
            f"{model_path.name} computes in {dtype}: {unusable[dtype]}.",
            "Use another device, or a form of the model in another data type. If you update the device's driver or the "
            "runtime, refresh the device: the type may work then.",
        )


async def _read_model(path: str, read: Callable[[], Result]) -> Result:
    """Return what `read` computes of a model's files. Raises ModelBroken if they do not answer."""
    try:
        return await asyncio.to_thread(bounded_read, Path(path), read, MODEL_READ_S)
    except NoAnswer as error:
        raise ModelBroken(*silent_folder(Path(path), error)) from error


def _does_not_fit(model: str, device: Device, plan: Plan) -> OutOfMemory:
    """Return the error for a plan that exceeds the free memory."""
    lower = "Set text.gpu_layers to auto or to a smaller number, lower" if plan.gpu_layers else "Lower"
    return OutOfMemory(
        f"{model} does not fit into the memory of {device.id}. {plan.explain()}",
        f"{lower} text.context_tokens or text.slots, set text.kv_cache to q8_0, close other programs, or choose a "
        "smaller model.",
        needed_bytes=plan.device_bytes or plan.system_bytes,
        free_bytes=plan.shares[0].free_bytes if plan.shares else plan.system_free_bytes,
    )
