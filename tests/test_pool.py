"""The worker pool: several models while they fit, LRU eviction, and no eviction without need."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken, OutOfMemory, TouchstoneError
from backend.common.memory_plan import Corrections
from backend.common.types import Device
from backend.engines import LoadRequest
from backend.scheduling import worker_pool
from backend.scheduling.load_size import find_load_size
from backend.scheduling.worker import Limits, Worker, WorkerKey
from backend.scheduling.worker_pool import LoadedModel, WorkerPool
from tests import tiny_genai
from tests.faulty import faulty

CPU = Device("cpu", "A processor", "cpu", "cpu", "ready", hardware_id="cpu:0")
TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


def needed(device: Device) -> int:
    """Return the bytes that the model needs on a device, with the smallest context and number of jobs."""
    text, unmeasured = load_settings({}, {}).text, Corrections()
    size = find_load_size(
        "llama.cpp", str(TINY), device, text, free_bytes=None, system_free_bytes=None, corrections=unmeasured
    )
    assert size.needed_bytes and size.slots == 1
    return size.needed_bytes


NEED = needed(CPU)


class Play:
    """A pool whose free memory the test decides; each worker of the fault child holds 2 bytes."""

    def __init__(self, free_bytes: int | None, flags: dict[str, object], faults: list[str]) -> None:
        self.free_bytes = free_bytes
        left = list(faults)

        def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
            return faulty(left.pop(0) if left else "ok")(python, arguments)

        self.pool = WorkerPool(load_settings(flags, {}), {"base": "python"}, spawn, lambda: self.free_bytes)

    async def load(self, model: str) -> LoadedModel:
        held, _ = await self.pool.acquire("cpu:0", CPU, WorkerKey("cpu", "base", "llama.cpp", model), TINY)
        self.pool.release(held)
        return held

    @property
    def models(self) -> list[str]:
        return sorted(key.model for key in self.pool._held)


def play(
    act: Callable[[Play], Awaitable[None]], free: int | None = 10**12, faults: list[str] | None = None, **flags: object
) -> None:
    async def once() -> None:
        stage = Play(free, {name.replace("__", "."): value for name, value in flags.items()}, faults or [])
        try:
            await act(stage)
        finally:
            await stage.pool.close("test ended")

    asyncio.run(once())


def test_models_stay_beside_each_other_while_they_fit() -> None:
    async def act(stage: Play) -> None:
        for model in "abc":
            await stage.load(model)
        assert stage.models == ["a", "b", "c"]
        first = await stage.load("a")
        assert (await stage.load("a")) is first, "a loaded model is used again"

    play(act)


def test_the_one_unused_longest_makes_room() -> None:
    async def act(stage: Play) -> None:
        for model in "abc":
            await stage.load(model)
        await stage.load("a")
        stage.free_bytes = NEED - 1  # one byte short: unloading one worker, which holds 2, is enough
        await stage.load("d")
        assert stage.models == ["a", "c", "d"]

    play(act)


def test_what_cannot_fit_is_refused_with_numbers_and_nothing_is_unloaded() -> None:
    async def act(stage: Play) -> None:
        await stage.load("a")
        stage.free_bytes = 1000
        with pytest.raises(OutOfMemory, match="needs about .* MB on cpu; 0 MB available") as caught:
            await stage.load("b")
        assert caught.value.extra["needed_bytes"] == NEED and caught.value.extra["free_bytes"] == 1002
        assert stage.models == ["a"]

    play(act)


def test_a_model_in_use_is_never_unloaded() -> None:
    async def act(stage: Play) -> None:
        held, _ = await stage.pool.acquire("cpu:0", CPU, WorkerKey("cpu", "base", "llama.cpp", "a"), TINY)
        stage.free_bytes = NEED - 1
        with pytest.raises(OutOfMemory):
            await stage.load("b")
        stage.pool.release(held)
        await stage.load("b")
        assert stage.models == ["b"]

    play(act)


def test_where_nothing_can_be_reckoned_there_is_one_model_at_a_time() -> None:
    async def act(stage: Play) -> None:
        await stage.load("a")
        await stage.load("b")
        assert stage.models == ["b"]

    play(act, free=None)


def test_a_limit_of_the_user_counts_what_is_loaded(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"devices: {{cpu: {{memory_limit: {NEED + 1}}}}}")

    async def act(stage: Play) -> None:
        await stage.load("a")
        await stage.load("b")
        assert stage.models == ["b"], "two workers of 2 bytes leave a byte less than is needed"

    play(act, config=str(config))


@pytest.mark.parametrize(("fault", "kind"), [("no_memory", OutOfMemory), ("dies_loading", TouchstoneError)])
def test_a_failed_load_leaves_the_others(fault: str, kind: type[TouchstoneError]) -> None:
    async def act(stage: Play) -> None:
        await stage.load("a")
        with pytest.raises(kind):
            await stage.load("b")
        assert stage.models == ["a"] and (await stage.load("a")).worker.alive

    play(act, faults=["ok", fault])


def test_an_idle_model_is_unloaded_in_time_and_its_process_is_gone() -> None:
    async def act(stage: Play) -> None:
        held = await stage.load("a")
        async with asyncio.timeout(5):
            while stage.models:
                await asyncio.sleep(0.01)
            while _lives(held.worker.pid):
                await asyncio.sleep(0.01)

    play(act, text__keep_alive_s=0.05)


def test_a_worker_that_died_while_idle_is_replaced() -> None:
    async def act(stage: Play) -> None:
        first = await stage.load("a")
        assert first.worker.pid
        os.killpg(first.worker.pid, 9)
        async with asyncio.timeout(5):
            while first.worker.alive:
                await asyncio.sleep(0.01)
        second = await stage.load("a")
        assert second is not first and second.worker.alive

    play(act)


def renamed(path: Path) -> None:
    """Another file in its place, with the same size and time."""
    facts = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


def overwritten(path: Path) -> None:
    """Other content of the same size in the same second."""
    facts = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def overwritten_unseen(path: Path) -> None:
    """Other content of the same size, with the old time."""
    facts = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def switched(path: Path) -> None:
    """A link that leads elsewhere."""
    target = path.resolve()
    other = target.with_name("other")
    other.write_bytes(target.read_bytes())
    path.unlink()
    path.symlink_to(other)


CHANGES = [renamed, overwritten, overwritten_unseen, switched, Path.unlink]


@pytest.mark.parametrize("which", [0, 1], ids=["first", "other"])
@pytest.mark.parametrize("kind", ["gguf", "onnx"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_model_whose_file_changed_is_loaded_again(
    tmp_path: Path, change: Callable[[Path], None], kind: str, which: int
) -> None:
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf") if kind == "gguf" else ("g.onnx", "weights.bin")
    paths = [tmp_path / name for name in names]
    content = (
        [TINY.read_bytes()] * 2 if kind == "gguf" else [tiny_genai.graph(external="weights.bin"), b"1" * 63 + b"2"]
    )
    for path, data in zip(paths, content, strict=True):
        (tmp_path / f"real-{path.name}").write_bytes(data)
        path.symlink_to(f"real-{path.name}")

    async def act(stage: Play) -> None:
        key = WorkerKey("cpu", "base", "llama.cpp", "a")
        stage.pool._load_unchanged = partial(load_nothing, stage.pool)  # type: ignore[method-assign]
        first, _ = await stage.pool.acquire("cpu:0", CPU, key, paths[0])
        assert await stage.pool.try_acquire(key, paths[0]) is first
        change(paths[which])
        assert await stage.pool.try_acquire(key, paths[0]) is None and not stage.pool.is_loaded(key)
        assert first.worker.alive, "the jobs that use it end with what they began with"
        waiting = asyncio.create_task(stage.pool.acquire("cpu:0", CPU, key, paths[0]))
        stage.pool.release(first)
        await asyncio.sleep(0)
        assert not waiting.done()
        stage.pool.release(first)
        second, _ = await waiting
        assert second is not first and not first.worker.alive and second.worker.alive
        stage.pool.release(second)

    play(act)


async def load_nothing(
    pool: WorkerPool, hardware_id: str, device: Device, key: WorkerKey, path: Path, *_: object
) -> LoadedModel:
    """Start a worker without an estimate: the files are not models that an engine reads."""
    limits = Limits(30, 30, 30, 30)
    worker = Worker(key, "python", limits, faulty("ok"))
    await worker.load(key.engine, LoadRequest("cpu", str(path), 64, 1))
    return LoadedModel(worker, hardware_id, path)


def test_a_new_link_or_new_permissions_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / TINY.name
    shutil.copy(TINY, path)

    async def act(stage: Play) -> None:
        key = WorkerKey("cpu", "base", "llama.cpp", "a")
        first, _ = await stage.pool.acquire("cpu:0", CPU, key, path)
        os.link(path, tmp_path / "link")
        path.chmod(0o600)
        assert await stage.pool.try_acquire(key, path) is first
        assert await stage.pool.try_acquire(key, tmp_path / "link") is None, "a model is its path, too"
        for _ in range(2):
            stage.pool.release(first)

    play(act)


def test_a_disk_that_does_not_answer_delays_a_job_once_and_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(worker_pool, "DISK_LIMIT_S", 0.05)
    monkeypatch.setattr(worker_pool, "find_change", lambda files: answer.wait(20) and files[0])

    async def act(stage: Play) -> None:
        key = WorkerKey("cpu", "base", "llama.cpp", "a")
        first, _ = await stage.pool.acquire("cpu:0", CPU, key, TINY)
        async with asyncio.timeout(5):
            for _ in range(3):
                assert await stage.pool.try_acquire(key, TINY) is first, "it holds what it opened, and says so"
        answer.set()
        assert first.checking
        await first.checking
        assert await stage.pool.try_acquire(key, TINY) is None
        for _ in range(4):
            stage.pool.release(first)

    play(act)


@pytest.mark.parametrize("faults", [["sees_change", "ok"], ["sees_change", "sees_change"]], ids=["once", "twice"])
def test_a_file_that_changes_during_a_load_is_loaded_once_more(faults: list[str]) -> None:
    async def act(stage: Play) -> None:
        if faults[-1] == "ok":
            assert (await stage.load("a")).worker.alive
        else:
            with pytest.raises(ModelBroken, match="was replaced"):
                await stage.load("a")
            assert not stage.models

    play(act, faults=faults)


def _lives(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_in_doubt_that_is_still_used_is_replaced_only_then(tmp_path: Path) -> None:
    async def act(stage: Play) -> None:
        key = WorkerKey("cpu", "base", "llama.cpp", "a")
        first, _ = await stage.pool.acquire("cpu:0", CPU, key, TINY)
        neighbour, _ = await stage.pool.acquire("cpu:0", CPU, key, TINY)
        assert neighbour is first
        stage.pool.release(first)
        first.worker.loaded = None  # one of its jobs cast doubt on it
        asked = asyncio.create_task(stage.pool.acquire("cpu:0", CPU, key, TINY))
        await asyncio.sleep(0)
        assert not asked.done() and first.worker.pid and Path(f"/proc/{first.worker.pid}").exists()
        stage.pool.release(neighbour)
        second, _ = await asked
        assert second is not first and second.worker.alive
        stage.pool.release(second)

    play(act)


def test_a_model_that_is_not_kept_is_still_handed_to_the_next_in_the_queue(tmp_path: Path) -> None:
    async def act(stage: Play) -> None:
        first = await stage.load("a")
        await asyncio.sleep(0)  # the next job's turn comes a moment later
        await asyncio.sleep(0)
        assert await stage.load("a") is first
        while stage.models:
            await asyncio.sleep(0.01)

    play(act, text__keep_alive_s=0)


CARD = Device("cuda:0", "A card", "cuda", "gpu", "ready", hardware_id="pci:0000:01:00.0")
CARD_NEED = needed(CARD)
CARD = replace(CARD, memory_free_bytes=3 * CARD_NEED)


def on_card(act: Callable[[WorkerPool, list[int]], Awaitable[None]], told: bool) -> None:
    """A card whose driver reports what is free, as `free[0]`, or does not."""

    async def once() -> None:
        free = [3 * CARD_NEED]
        settings = load_settings({}, {})
        pool = WorkerPool(
            settings,
            {"base": "python"},
            faulty("ok"),
            lambda: 10**12,
            card_free_bytes=lambda _: free[0] if told else None,
        )
        try:
            await act(pool, free)
        finally:
            await pool.close("test ended")

    asyncio.run(once())


async def load_on_card(pool: WorkerPool, model: str) -> LoadedModel:
    held, _ = await pool.acquire("pci:0000:01:00.0", CARD, WorkerKey("cuda:0", "base", "llama.cpp", model), TINY)
    pool.release(held)
    return held


def test_a_card_is_asked_what_is_free_now_and_its_workers_count_by_what_they_took_there() -> None:
    async def act(pool: WorkerPool, free: list[int]) -> None:
        first = await load_on_card(pool, "a")
        assert first.memory_bytes == CARD_NEED, "nothing changed on the card while it loaded: as reckoned"
        free[0] = CARD_NEED - 1  # another program came
        await load_on_card(pool, "b")
        assert [held.worker.key.model for held in pool.loaded_models()] == ["b"]
        [second] = pool.loaded_models()
        free[0], second.users = 10, 1
        with pytest.raises(OutOfMemory):
            await load_on_card(pool, "c")

    on_card(act, told=True)


def test_where_a_card_does_not_tell_what_ours_took_is_kept_account_of() -> None:
    async def act(pool: WorkerPool, free: list[int]) -> None:
        for model in "abc":
            await load_on_card(pool, model)
        assert len(pool.loaded_models()) == 3, "the proof found room for three"
        await load_on_card(pool, "d")
        assert [held.worker.key.model for held in pool.loaded_models()] == ["b", "c", "d"]

    on_card(act, told=False)


def test_what_a_worker_took_of_a_card_is_measured() -> None:
    async def act(pool: WorkerPool, free: list[int]) -> None:
        asked = iter((3 * CARD_NEED, 3 * CARD_NEED - 7777))
        pool._card_free_bytes = lambda _: next(asked)
        assert (await load_on_card(pool, "a")).memory_bytes == 7777

    on_card(act, told=True)


def test_a_job_joins_those_that_run_by_their_engine(tmp_path: Path) -> None:
    async def act(stage: Play) -> None:
        names = ["onnx-genai", "llama.cpp"]
        held, _ = await stage.pool.acquire("cpu:0", CPU, WorkerKey("cpu", "base", "llama.cpp", "a"), TINY)
        assert stage.pool.joinable_engine("cpu", "a", names) == "llama.cpp"
        assert stage.pool.joinable_engine("cpu", "a", ["onnx-genai"]) is None
        assert (
            stage.pool.joinable_engine("cuda:0", "a", names) is None
            and stage.pool.joinable_engine("cpu", "b", names) is None
        )
        stage.pool.release(held)
        assert stage.pool.joinable_engine("cpu", "a", names) is None, "one that rests is no reason"

    play(act, text__slots=2)


def test_a_job_that_asks_for_other_layers_loads_the_model_again() -> None:
    async def act(pool: WorkerPool, free: list[int]) -> None:
        async def load(device: Device, gpu_layers: int | Literal["auto"] | None) -> LoadedModel:
            key = WorkerKey(device.id, "base", "llama.cpp", "a")
            held, _ = await pool.acquire(device.hardware_id or "", device, key, TINY, gpu_layers=gpu_layers)
            pool.release(held)
            return held

        first = await load(CARD, None)
        assert await load(CARD, None) is first
        asked = await load(CARD, 1)
        assert asked is not first and await load(CARD, 1) is asked and await load(CARD, None) is asked
        assert await load(CARD, "auto") is not asked
        assert await load(CPU, 1) is await load(CPU, 2), "the processor has no layers to choose"

    on_card(act, told=True)


def test_with_one_slot_there_is_nobody_to_join(tmp_path: Path) -> None:
    async def act(stage: Play) -> None:
        held, _ = await stage.pool.acquire("cpu:0", CPU, WorkerKey("cpu", "base", "llama.cpp", "a"), TINY)
        assert stage.pool.joinable_engine("cpu", "a", ["llama.cpp"]) is None
        stage.pool.release(held)

    play(act, text__slots=1)


def test_the_log_has_why_a_worker_stopped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "backend")

    async def act(pool: Play) -> None:
        await pool.load("a")
        pool.free_bytes = 0
        with pytest.raises(OutOfMemory):
            await pool.load("b")
        pool.free_bytes = NEED - 1
        await pool.load("b")
        await pool.pool.unload(pool.pool.loaded_models()[0], "unload requested", "job-1")
        pool.free_bytes = 10**12
        await pool.load("c")

    play(act)
    stopped = [vars(record) for record in caplog.records if record.getMessage() == "worker stopped"]
    assert [(line["model"], line["cause"], line["job"]) for line in stopped] == [
        ("a", "evicted for b", None),
        ("b", "unload requested", "job-1"),
        ("c", "test ended", None),
    ]
