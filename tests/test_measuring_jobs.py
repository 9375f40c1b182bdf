"""Benchmark jobs: failures are skipped and reported, other jobs come first, and idle machines start one.

Children that play faults stand for the devices: the n-th worker that starts plays the n-th fault.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.common.system import power
from backend.jobs.generate_request import parse_request
from backend.jobs.live_job import LiveJob
from backend.manager.benchmarks import idle_trigger, report
from backend.manager.benchmarks.request import BenchmarkRequest, parse_benchmark_request
from backend.manager.core import Core
from tests.faulty import faulty
from tests.test_executor import CARD, _config

Act = Callable[[Core], Awaitable[None]]
EMULATED = replace(CARD, id="vulkan:1", kind="emulated", hardware_id="cpu:0")


def play(tmp_path: Path, act: Act, faults: list[str], **flags: Any) -> None:
    """The CPU and a card are ready, and an emulated device; all that starts later plays `ok`."""
    left = list(faults)

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" and left else "ok")(python, arguments)

    async def once() -> None:
        named = {name.replace("__", "."): value for name, value in flags.items()}
        limits = {"supervision.silence_s": 0.6, "supervision.step_s": 0.6}
        core = Core(load_settings({"config": _config(tmp_path), **limits, **named}, {}), spawn)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            for device in (CARD, EMULATED):
                core.probes.devices[device.id] = device
            async with asyncio.timeout(30):
                await act(core)
        finally:
            await core.stop()

    asyncio.run(once())


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's own machine may be busy, or a laptop."""
    monkeypatch.setattr(power, "on_battery", lambda: False)
    for module in (idle_trigger, report):
        monkeypatch.setattr(module, "BUSY", 1e9)
    yield


async def measured(core: Core, **asked: Any) -> LiveJob:
    job = await core.benchmarks.submit(
        parse_benchmark_request({"runs": 2, "streams": 1, "models": ["tiny"], **asked}), "test"
    )
    await job.ended.wait()
    return job


def ways(job: LiveJob) -> list[str]:
    assert job.result
    return list(dict.fromkeys(row["device"] for row in job.result["rows"]))


def test_all_ready_devices_but_emulated_ones_are_measured_in_turns(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        job = await measured(core)
        assert job.status == "done" and ways(job) == ["cpu", "vulkan:0"]
        phases = [event.data["phase"].split()[2] for event in job.events if event.event == "progress"]
        assert phases == ["cpu", "vulkan:0", "vulkan:0", "cpu", "cpu", "vulkan:0"]
        assert {device.id: len(device.speed) for device in core.directory.known_devices()} == {
            "cpu": 1, "vulkan:0": 1, "vulkan:1": 0,
        }  # fmt: skip
        assert core.pool.loaded_models() == [], "its workers are gone, and none of the service's was made"
        assert ways(await measured(core, devices=["vulkan:1"])) == ["vulkan:1"], "if it is named"

    play(tmp_path, act, [])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("dies_loading", "SIGSEGV"),
        ("dies_running", "SIGSEGV"),
        ("stuck", "no step finished"),
        ("no_memory", "9 GB"),
        ("elsewhere", "Only 0%"),
        ("device_lost", "reset the device"),
    ],
)
def test_what_fails_is_left_out_with_its_reason_and_the_others_are_measured(
    tmp_path: Path, fault: str, words: str
) -> None:
    async def act(core: Core) -> None:
        job = await measured(core)
        assert job.status == "done" and job.result and ways(job) == ["cpu"]
        [skipped] = job.result["skipped"]
        assert skipped["device"] == "vulkan:0" and words in skipped["reason"]
        assert "Not measured: vulkan:0" in job.view()["output"]["text"]
        assert len(core.benchmarks.history.all()) == 1

    play(tmp_path, act, ["ok", fault])


def test_if_all_fail_the_job_fails_and_nothing_is_kept(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        job = await measured(core)
        assert job.status == "error" and job.error and job.error.code == "device_not_ready"
        assert "9 GB" in job.error.detail and core.benchmarks.history.all() == []

    play(tmp_path, act, ["no_memory", "no_memory"])


def test_a_job_that_comes_runs_between_two_rounds(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        measuring = await core.benchmarks.submit(parse_benchmark_request({"runs": 50, "streams": 1}), "test")
        async for event in measuring.follow():
            if event.event == "progress" and event.data["done"] == 2:
                break
        job = await core.submit(parse_request({"prompt": "Hi", "device": "cpu"}), "somebody")
        assert isinstance(job, LiveJob)
        await job.ended.wait()
        assert job.status == "done" and measuring.active
        measuring.cancelling.set()
        await measuring.ended.wait()
        assert measuring.status == "cancelled" and core.benchmarks.history.all() == []

    play(tmp_path, act, [])


def test_idle_models_make_room_and_those_in_use_stay(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        job = await core.submit(parse_request({"prompt": "Hi", "device": "cpu"}), "somebody")
        assert isinstance(job, LiveJob)
        await job.ended.wait()
        assert len(core.pool.loaded_models()) == 1
        await measured(core, devices=["vulkan:0"])
        assert len(core.pool.loaded_models()) == 1, "another hardware's"
        await measured(core, devices=["cpu"])
        assert core.pool.loaded_models() == []

    play(tmp_path, act, [])


@pytest.mark.usefixtures("resting")
def test_what_became_slower_is_a_problem_of_health_that_degrades_nothing(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        await measured(core, devices=["cpu"])
        [now] = core.benchmarks.history.all()
        assert core.health.health()["problems"] == []
        before = replace(now, touchstone="0.0.1", speed=replace(now.speed, value=now.speed.value * 3, low=1, high=1))
        core.benchmarks.history.add([replace(before, speed=replace(before.speed, low=None, high=None)), now])
        [problem] = core.health.health()["problems"]
        assert (problem["subject"], problem["code"]) == ("cpu", "slower_after_update") and problem["remedy"]
        assert core.health.health()["status"] == "ok"

    play(tmp_path, act, [])


async def used(core: Core) -> None:
    job = await core.submit(parse_request({"prompt": "Hi", "device": "cpu"}), "somebody")
    assert isinstance(job, LiveJob)
    await job.ended.wait()


async def begun(core: Core) -> LiveJob:
    """The measurement that the service takes by itself."""
    while True:
        for job in core.registry.live.values():
            if job.task == "bench":
                return job
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("resting")
def test_an_idle_machine_measures_what_was_used_once(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        assert await core.idle_trigger.due_model([]) is None, "no model was used"
        await used(core)
        job = await begun(core)
        await job.ended.wait()
        assert job.parameters["models"] == ["tiny"] and job.parameters["source"] == "idle"
        assert [one.device for one in core.benchmarks.history.all()] == ["cpu", "vulkan:0"]
        assert await core.idle_trigger.due_model([]) is None, "all is known"
        core.probes.devices["vulkan:0"] = replace(CARD, name="Another card")
        assert await core.idle_trigger.due_model([]) == "tiny"
        assert await core.idle_trigger.due_model(["tiny"]) is None
        del core.probes.devices["vulkan:0"]
        assert await core.idle_trigger.due_model([]) is None, "there is no choice"
        core.probes.devices["cpu"] = replace(core.probes.devices["cpu"], name="Another processor")
        assert await core.idle_trigger.due_model([]) is None, "of that one nothing is known, and there is no choice"

    play(tmp_path, act, [], measuring__idle_s=0.05)


@pytest.mark.usefixtures("resting")
def test_the_first_job_that_comes_ends_it(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        await used(core)
        measuring = await begun(core)
        await used(core)
        await measuring.ended.wait()
        assert measuring.status == "cancelled" and core.benchmarks.history.all() == []

    play(tmp_path, act, ["ok", "deaf"], measuring__idle_s=0.05)


def test_it_rests_on_battery_and_while_other_programs_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "on_battery", lambda: False)
    monkeypatch.setattr(idle_trigger, "BUSY", 1e9)
    assert asyncio.run(idle_trigger.is_machine_idle())
    monkeypatch.setattr(idle_trigger, "BUSY", -1.0)
    assert not asyncio.run(idle_trigger.is_machine_idle())
    monkeypatch.setattr(idle_trigger, "BUSY", 1e9)
    monkeypatch.setattr(power, "on_battery", lambda: True)
    assert not asyncio.run(idle_trigger.is_machine_idle())


def test_the_setting_switches_it_off(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        await asyncio.wait_for(core.idle_trigger.watch(), 5)

    play(tmp_path, act, [], measuring__when_idle=False)


@pytest.mark.usefixtures("resting")
def test_another_version_of_the_service_measures_again(tmp_path: Path) -> None:
    async def act(core: Core) -> None:
        await used(core)
        await measured(core)
        assert await core.idle_trigger.due_model([]) is None
        known = core.benchmarks.history.all()
        core.benchmarks.history.add([replace(one, busy=True) for one in known])
        assert await core.idle_trigger.due_model([]) is None, "what a calm machine measured stands"
        core.benchmarks.history.add([replace(one, touchstone="0.0.1") for one in known])
        assert await core.idle_trigger.due_model([]) == "tiny"
        assert all(device.speed for device in core.directory.known_devices() if device.kind != "emulated"), (
            "it counts meanwhile"
        )

    play(tmp_path, act, [], measuring__when_idle=False)


def test_what_is_asked_is_checked() -> None:
    assert BenchmarkRequest() == parse_benchmark_request({})
    with pytest.raises(Exception, match="runs"):
        parse_benchmark_request({"runs": 0})
