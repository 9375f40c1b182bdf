"""Choices of the scheduler: order by speed, names of devices, engines by options, and evictions by memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.config.settings import load_settings
from backend.common.errors import (
    Configuration,
    DeviceNotReady,
    OutOfMemory,
    UnknownDevice,
    UnsupportedParameter,
    WorkerCrashed,
)
from backend.common.types import Device, Speed
from backend.devices import backends
from backend.manager.benchmarks.history import Measurements
from backend.scheduling import worker_pool
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.device_resolution import check_device_name, in_order, resolve, unreachable
from backend.scheduling.load_size import LoadSize
from backend.scheduling.option_support import check_honoured, engines_honouring
from backend.scheduling.provider_options import check_provider_options
from backend.scheduling.quarantine import Combination, WorkerDeath
from backend.scheduling.ranking import NOISE, RankingQuery, SpeedFigure, by_preference, by_speed, equal
from backend.scheduling.worker import WorkerKey
from backend.scheduling.worker_pool import LoadedModel, WorkerPool

QUERY = RankingQuery("stone", ("llama.cpp",))


def figure(number: int, value: float, spread: float = 0.0) -> SpeedFigure:
    return SpeedFigure(f"card:{number}", "e", value, value * (1 - spread), value * (1 + spread), "tokens/s", 1)


values = st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 0.2)), min_size=1, max_size=8)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(values)
def test_a_clearly_faster_device_never_comes_after_all_others(rates: list[tuple[float, float]]) -> None:
    figures = [figure(number, *rate) for number, rate in enumerate(rates)]
    ranked = by_speed(figures)
    assert sorted(each.device for each in ranked) == sorted(each.device for each in figures)
    for place, first in enumerate(ranked):
        best = max(ranked[place:], key=lambda each: each.value)
        assert first is best or equal(first, best), "each place goes to the fastest of the rest, within the noise"
    assert by_speed(ranked) == ranked


@settings(max_examples=60, derandomize=True, deadline=None)
@given(values)
def test_within_the_noise_the_given_order_stays(rates: list[tuple[float, float]]) -> None:
    figures = [figure(number, 100 * (1 - NOISE * 0.9 * spread / 0.2)) for number, (_, spread) in enumerate(rates)]
    assert by_speed(figures) == figures


ids = st.lists(st.sampled_from(["cpu", "cuda:0", "cuda:1", "vulkan:0", "xpu:0", "onnx-tensorrt:0"]), unique=True)


def device(id_: str, **more: Any) -> Device:
    backend = backends()[id_.partition(":")[0]]
    return Device(id_, id_, backend.name, **{"kind": backend.kind, "state": "ready", "tasks": ["text"], **more})


@settings(max_examples=60, derandomize=True, deadline=None)
@given(ids, st.randoms(use_true_random=False), st.lists(st.none() | st.floats(1, 1000), min_size=6, max_size=6))
def test_the_order_of_devices_does_not_depend_on_the_order_in_which_they_were_found(
    names: list[str], random: Any, speeds: list[float | None]
) -> None:
    def speed(value: float | None) -> list[Speed]:
        return [] if value is None else [Speed("stone", "llama.cpp", value, "tokens/s", "t")]

    devices = [device(name, speed=speed(speeds[number])) for number, name in enumerate(names)]
    shuffled = list(devices)
    random.shuffle(shuffled)
    ordered = by_preference(devices, "text", QUERY)
    assert by_preference(shuffled, "text", QUERY) == ordered and set(names) == {each.id for each in ordered}
    assert sorted(shuffled, key=in_order) == sorted(devices, key=in_order)
    if ordered:
        known = {each.id: each for each in devices}
        chosen = resolve("auto", known, [], task="text", engine=None, query=QUERY)
        assert chosen.resolved == ordered[0].id


LEFT_OUT: list[dict[str, Any]] = [{"state": "broken"}, {"state": "probing"}, {"kind": "emulated"}, {"tasks": ["music"]}]


@pytest.mark.parametrize("change", LEFT_OUT, ids=str)
def test_auto_never_takes_a_device_that_cannot_do_the_task_for_real(change: dict[str, Any]) -> None:
    devices = {"cuda:0": device("cuda:0", **change), "cpu": device("cpu")}
    assert resolve("auto", devices, [], task="text", engine=None).resolved == "cpu"
    if change != {"tasks": ["music"]}:
        assert resolve("gpu", devices, [], task="text", engine=None).resolved is None
    assert resolve("cuda:0", devices, [], task="text", engine=None).resolved == "cuda:0", "a name is taken literally"


NAMES = [
    ("CUDA", "cuda:1", "the first ready one"),
    ("cuda:0", "cuda:0", "the one that is named"),
    (" cuda:1 ", "cuda:1", "spaces do not count"),
    ("hip", "rocm:0", "an alias"),
    ("gpu", "cuda:1", "the first ready GPU"),
    ("vulkan", "vulkan:0", "not there, so the first index"),
]


@pytest.mark.parametrize(("asked", "resolved", "why"), NAMES)
def test_a_name_leads_to_one_device(asked: str, resolved: str, why: str) -> None:
    devices = {each.id: each for each in (device("cuda:0", state="broken"), device("cuda:1"), device("cpu"))}
    resolution = resolve(asked, devices, [], task="text", engine=None)
    assert resolution.resolved == resolved and resolution.reason, why


@pytest.mark.parametrize(
    "name", ["", "cuda:", "cuda:01", "cuda:-1", "cuda:1.0", "cuda:99999", "gpu:0", "x" * 300, "cuda 0"]
)
def test_a_name_that_means_nothing_is_refused_with_the_known_ids(name: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        check_device_name(name, "text", None, lambda: ["cpu", "cuda:0"])
    assert caught.value.extra["valid"] == ["auto", "cpu", "cuda:0"] and len(caught.value.detail) < 200


SUPPORT: list[tuple[str, dict[str, Any], list[str]]] = [
    ("text", {}, ["llama.cpp", "onnx-genai", "transformers"]),
    ("text", {"temperature": 0.1, "seed": 3}, ["llama.cpp", "onnx-genai", "transformers"]),
    ("text", {"tools": [{}]}, ["llama.cpp", "onnx-genai", "transformers"]),
    ("text", {"response_format": {"type": "json_object"}}, ["llama.cpp"]),
    ("text", {"gpu_layers": 12}, ["llama.cpp"]),
    ("text", {"tools": None, "response_format": None}, ["llama.cpp", "onnx-genai", "transformers"]),
    ("lyrics", {"theme": "rain", "sections": ["verse"]}, ["llama.cpp", "onnx-genai", "transformers"]),
    ("a new task", {"anything": 1}, ["llama.cpp", "onnx-genai", "transformers"]),
]


@pytest.mark.parametrize(("task", "options", "expected"), SUPPORT, ids=lambda value: str(value)[:40])
def test_an_engine_is_used_only_if_it_honours_each_option_that_was_changed(
    task: str, options: dict[str, Any], expected: list[str]
) -> None:
    names = ["llama.cpp", "onnx-genai", "transformers"]
    assert engines_honouring(task, options, names) == expected
    check_honoured(task, options, names)
    for name in set(names) - set(expected):
        with pytest.raises(UnsupportedParameter) as caught:
            check_honoured(task, options, [name])
        assert caught.value.extra["fields"] == [f"options.{key}" for key in options] and name in caught.value.detail
    check_honoured(task, options, [])


def _settings(folder: Path, text: str, **flags: Any) -> Any:
    (folder / "config.yaml").write_text(text)
    return load_settings({"config": str(folder / "config.yaml"), **flags}, {})


@pytest.mark.parametrize(
    ("device_id", "option", "words"),
    [
        ("onnx-cuda:0", "device_id", "onnx-cuda:N"),
        ("cpu", "anything", "Leave them out"),
        ("cuda:0", "gpu_mem_limit", "Leave them out"),
        ("onnx-cuda:0", "gpu_mem_limt", "Did you mean gpu_mem_limit?"),
        ("onnx-cuda:0", "zzz", "Known: "),
    ],
)
def test_an_option_that_the_device_s_library_does_not_have_is_refused_at_the_start(
    tmp_path: Path, device_id: str, option: str, words: str
) -> None:
    text = f"devices: {{'{device_id}': {{provider_options: {{{option}: 1}}}}}}"
    with pytest.raises(Configuration) as caught:
        check_provider_options(_settings(tmp_path, text))
    assert words in caught.value.remedy and option in caught.value.detail


def directory(settings_: Any, changed: list[Device] | None = None, **more: Any) -> DeviceDirectory:
    arguments: dict[str, Any] = {
        "start_task": lambda work: work.close(),
        "measurements": Measurements(),
        "measured_speeds": lambda each: [],
        "is_occupied": lambda each: False,
        "on_change": (changed if changed is not None else []).append,
    }
    return DeviceDirectory(settings_, {}, cast(Any, None), **{**arguments, **more})


def test_a_device_that_the_user_disabled_is_unavailable_and_never_chosen(tmp_path: Path) -> None:
    devices = directory(_settings(tmp_path, "devices: {'cuda:0': {enabled: false}}"))
    devices.probes.devices.update({each.id: each for each in (device("cuda:0"), device("cpu"))})
    assert [(each.id, each.state) for each in devices.known_devices()] == [("cpu", "ready"), ("cuda:0", "unavailable")]
    assert "enabled is false" in (devices.device("cuda:0").reason or "")
    assert devices.resolve("auto").resolved == "cpu" and devices.resolve("gpu").resolved is None


def test_the_third_death_of_a_pair_quarantines_it_and_probes_the_device_until_a_release(tmp_path: Path) -> None:
    probed: list[Any] = []

    def start(work: Any) -> None:
        probed.append(work)
        work.close()

    devices = directory(_settings(tmp_path, ""), start_task=start)
    devices.probes.devices["cuda:0"] = device("cuda:0")
    for number in range(4):
        devices.record_worker_death(
            WorkerDeath(Combination("cuda:0", "torch", "stone"), WorkerCrashed("x", "y"), engines=("torch",))
        )
        assert len(probed) == (number >= 2)
    assert devices.device("cuda:0").quarantined_models == ["stone"] and devices.device("cuda:0").state == "ready"
    devices.probes.devices["cuda:0"] = device("cuda:0", state="broken", reason="It is wrong.")
    assert devices.device("cuda:0").state == "quarantined"
    devices.release("cuda:0", "other")
    assert devices.device("cuda:0").quarantined_models == ["stone"]
    devices.release("cuda:0", None)
    assert devices.device("cuda:0").quarantined_models == [] and devices.device("cuda:0").state == "broken"
    with pytest.raises(UnknownDevice):
        devices.release("toaster", None)


def test_measured_speeds_are_shown_and_decide_between_devices(tmp_path: Path) -> None:
    fast = Speed("stone", "llama.cpp", 90, "tokens/s", "t")
    slow = replace(fast, value=10)
    devices = directory(_settings(tmp_path, ""), measured_speeds=lambda each: [fast if each.id == "cpu" else slow])
    devices.probes.devices.update({each.id: each for each in (device("cuda:0"), device("cpu"))})
    assert devices.device("cpu").speed == [fast]
    assert devices.resolve("auto", query=QUERY).resolved == "cpu" and devices.resolve("auto").resolved == "cuda:0"


def test_a_default_device_of_the_settings_must_exist_as_a_name(tmp_path: Path) -> None:
    assert directory(_settings(tmp_path, "", device="cuda:3")).resolve("auto").resolved == "cuda:3"
    with pytest.raises(Configuration, match="toaster"):
        directory(_settings(tmp_path, "", device="toaster"))


class StandIn:
    """A worker that loads at once and holds as many bytes as its model's name says."""

    def __init__(self, key: WorkerKey, *_: object) -> None:
        self.key = key
        self.alive = False
        self.loaded = None
        self.pid = 1
        self.resident_bytes = self.peak_bytes = int(key.model.split("-")[1])

    async def load(self, *_: object) -> None:
        self.alive = True

    async def close(self, job_id: str | None, cause: str) -> None:
        self.alive = False


class Bench:
    """A pool of stand-in workers on one device with a memory limit; a model `a-30` needs 30 bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int | None, estimate: bool = True) -> None:
        def find_load_size(engine: str, path: str, *_: object, **__: object) -> LoadSize:
            needed = int(Path(path).name) if estimate else None
            return LoadSize(4096, 1, needed, needed)

        monkeypatch.setattr(worker_pool, "Worker", StandIn)
        monkeypatch.setattr(worker_pool, "find_load_size", find_load_size)
        self.limit = limit
        self.cpu = Device("cpu", "A processor", "cpu", "cpu", "ready", hardware_id="cpu:0")
        self.pool = WorkerPool(load_settings({}, {}), {"base": "python"}, cast(Any, None), self._free_bytes)

    def _free_bytes(self) -> int | None:
        return None if self.limit is None else self.limit - self.used

    @property
    def used(self) -> int:
        return sum(each.memory_bytes for each in self.pool.loaded_models())

    @property
    def models(self) -> list[str]:
        return [each.worker.key.model for each in self.pool.loaded_models()]

    async def take(self, model: str, queue: str = "cpu:0") -> LoadedModel:
        key = WorkerKey("cpu", "base", "llama.cpp", model)
        return (await self.pool.acquire(queue, self.cpu, key, Path(model.split("-")[1])))[0]

    async def use(self, model: str) -> None:
        """Load a model and let it rest."""
        self.pool.release(await self.take(model))


def play(bench: Bench, act: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await act()
        finally:
            for each in bench.pool.loaded_models():
                each.users = 0
            await bench.pool.close("test ended")
            assert bench.models == []

    asyncio.run(run())


def test_any_series_of_models_keeps_the_limit_and_evicts_the_least_recently_used_first() -> None:
    @settings(max_examples=60, derandomize=True, deadline=None)
    @given(st.lists(st.sampled_from(["a-10", "b-20", "c-30", "d-40", "e-70"]), min_size=1, max_size=12), st.booleans())
    def series(models: list[str], holds_first: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            bench = Bench(patch, 100)

            async def act() -> None:
                held = await bench.take("z-25") if holds_first else None
                recent = ["z-25"] if held else []
                for model in models:
                    before = set(bench.models)
                    await bench.use(model)
                    recent = [*(each for each in recent if each != model), model]
                    assert bench.used <= 100 and model in bench.models and (held is None or "z-25" in bench.models)
                    evicted = before - set(bench.models)
                    idle = [each for each in recent if each in before and each not in (model, "z-25")]
                    assert list(itertools.takewhile(evicted.__contains__, idle)) == [e for e in idle if e in evicted]
                    if evicted:
                        last = next(each for each in reversed(idle) if each in evicted)
                        assert bench.used + int(last.split("-")[1]) > 100, "no more was evicted than necessary"

            play(bench, act)

    series()


def test_a_model_that_cannot_fit_beside_those_in_use_evicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 100)

    async def act() -> None:
        held = await bench.take("a-50")
        await bench.use("b-20")
        with pytest.raises(OutOfMemory) as caught:
            await bench.take("c-60")
        assert (caught.value.extra["needed_bytes"], caught.value.extra["free_bytes"]) == (60, 50)
        assert bench.models == ["a-50", "b-20"] and not bench.pool.runtime_in_use("other")
        assert bench.pool.available_bytes("cpu:0", bench.cpu) == 50, "what an eviction would free counts"
        bench.pool.release(held)
        assert bench.pool.available_bytes("cpu:0", bench.cpu) == 100 and not bench.pool.runtime_in_use("base")

    play(bench, act)


def test_without_an_estimate_each_model_is_alone_unless_another_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 100, estimate=False)

    async def act() -> None:
        await bench.use("a-1")
        held = await bench.take("b-1")
        assert bench.models == ["b-1"]
        await bench.use("c-1")
        assert bench.models == ["b-1", "c-1"] and bench.pool.available_bytes("other", bench.cpu) == 98
        bench.pool.release(held)

    play(bench, act)


def test_the_measured_memory_of_a_model_corrects_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 100)

    async def act() -> None:
        held = await bench.take("a-30")
        cast(Any, held.worker).peak_bytes = 90
        bench.pool.release(held)
        await bench.pool.unload(held, "test")
        await bench.pool.unload(held, "test")
        await bench.use("b-20")
        await bench.use("a-30")
        assert bench.models == ["a-30"], "with its estimate both would have fit"

    play(bench, act)


def test_a_model_on_other_hardware_is_never_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 100)

    async def act() -> None:
        bench.pool.release(await bench.take("a-80", queue="other"))
        with pytest.raises(OutOfMemory):
            await bench.take("b-30")
        assert bench.models == ["a-80"]
        assert bench.pool.occupies("cpu") and not bench.pool.occupies("cuda:0")

    play(bench, act)


def test_a_runtime_that_was_removed_while_a_job_waited_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 100)

    async def act() -> None:
        with pytest.raises(DeviceNotReady, match="torch"):
            await bench.pool.acquire("cpu:0", bench.cpu, WorkerKey("cpu", "torch", "torch", "a-1"), Path("1"))
        assert not bench.pool.runtime_in_use("torch")

    play(bench, act)


def test_a_device_without_hardware_behind_it_says_what_to_do() -> None:
    missing = unreachable("npu:0" if "npu" in backends() else "onnx-qnn:0", backends()["onnx-qnn"])
    assert (missing.state, missing.kind) == ("unavailable", "npu") and missing.reason and missing.remedy
