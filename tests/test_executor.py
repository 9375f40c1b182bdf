"""The executor: attempts, fallback by policy, and endings, with children that simulate faults."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common import errors
from backend.common.config.settings import load_settings
from backend.common.types import Device
from backend.jobs.generate_request import parse_request
from backend.jobs.live_job import LiveJob
from backend.manager.core import Core
from backend.scheduling import worker_pool
from backend.scheduling.worker_pool import LoadedModel, WorkerPool
from tests.faulty import faulty

CARD = Device(
    "vulkan:0", "A card", "vulkan", "gpu", "ready", "runs", ["base"], hardware_id="pci:0000:01:00.0",
    tasks=["text"], engines=["llama.cpp"], served_by={"base": ["llama.cpp"]},
)  # fmt: skip
GGUF = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


@pytest.fixture(autouse=True)
def no_extra_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a load on a card no more time than the settings: a silent one lasts for all of it."""
    monkeypatch.setattr(worker_pool, "CHECK_S", 0.0)


def run(tmp_path: Path, faults: list[str], card: Device | None = CARD, **body: Any) -> LiveJob:
    """Runs one job; the n-th worker that starts plays the n-th fault. The CPU and the card are ready."""
    left = list(faults)

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> LiveJob:
        limits = {f"supervision.{name}": 0.6 for name in ("silence_s", "step_s")} | {"supervision.load_s": 2}
        core = Core(load_settings({"config": _config(tmp_path), **limits}, {}), spawn)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            if card:
                core.probes.devices[card.id] = card
            job = await core.submit(parse_request({"prompt": "Hi", "device": "vulkan:0", **body}), "test")
            assert isinstance(job, LiveJob)
            await job.ended.wait()
            return job
        finally:
            await core.stop()

    return asyncio.run(play())


def _config(folder: Path) -> str:
    file = folder / "config.yaml"
    file.write_text(f"models: {{tiny: {{path: '{GGUF}'}}}}\ndefault_models: {{text: tiny}}\n")
    return str(file)


def kinds(job: LiveJob) -> list[str]:
    return [event.event for event in job.events if event.event not in ("token", "progress")]


def test_a_sound_device_runs_the_job(tmp_path: Path) -> None:
    job = run(tmp_path, ["ok"])
    assert job.receipt and (job.receipt.used, job.receipt.fell_back) == ("vulkan:0", False)
    assert kinds(job) == ["queued", "loading", "running", "done"]


def test_a_load_that_takes_time_shows_how_far_it_is(tmp_path: Path) -> None:
    job = run(tmp_path, ["slow_loading"])
    steps = [event.data for event in job.events if event.event == "progress" and event.data["phase"] == "load"]
    assert steps and all(0 < step["done"] <= step["total"] and step["unit"] == "bytes" for step in steps)
    assert kinds(job) == ["queued", "loading", "running", "done"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [("no_memory", "out_of_memory"), ("device_lost", "device_lost"), ("elsewhere", "placement_too_low")],
)
def test_a_failing_device_falls_back_aloud(tmp_path: Path, fault: str, code: str) -> None:
    job = run(tmp_path, [fault, "ok"])
    assert job.status == "done" and job.receipt
    assert (job.receipt.used, job.receipt.fell_back, job.receipt.resolved) == ("cpu", True, "vulkan:0")
    assert [(attempt.device, attempt.error) for attempt in job.receipt.attempts] == [("vulkan:0", code), ("cpu", None)]
    assert job.receipt.reason and code in job.receipt.reason
    fallback = next(event.data for event in job.events if event.event == "fallback")
    assert (fallback["from"], fallback["to"], fallback["code"]) == ("vulkan:0", "cpu", code) and fallback["reason"]
    assert job.view()["output"]["text"] == "x" * 5, "what came before the fallback is not part of the text"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("dies_loading", "worker_crashed"),
        ("dies_running", "worker_crashed"),
        ("nonsense", "worker_crashed"),
        ("silent_loading", "worker_hung"),
        ("stuck", "worker_hung"),
    ],
)
def test_a_crash_or_hang_never_falls_back(tmp_path: Path, fault: str, code: str) -> None:
    job = run(tmp_path, [fault, "ok"], fallback="any")
    assert job.status == "error" and job.error and job.error.code == code
    assert "fallback" not in kinds(job)
    assert job.receipt and [attempt.error for attempt in job.receipt.attempts] == [code]


def test_never_means_never(tmp_path: Path) -> None:
    job = run(tmp_path, ["no_memory", "ok"], fallback="never")
    assert job.status == "error" and job.error and job.error.code == "out_of_memory"


def test_any_tries_other_devices_before_the_cpu(tmp_path: Path) -> None:
    job = run(tmp_path, ["ok"], device="cuda:0", fallback="any")
    assert job.receipt and job.receipt.used == "vulkan:0"


def test_a_fallback_that_fails_too_ends_with_its_own_error(tmp_path: Path) -> None:
    job = run(tmp_path, ["device_lost", "no_memory"])
    assert job.error and job.error.code == "out_of_memory"
    assert job.receipt and [a.error for a in job.receipt.attempts] == ["device_lost", "out_of_memory"]


def test_without_evidence_the_receipt_says_unknown(tmp_path: Path) -> None:
    job = run(tmp_path, ["no_evidence"])
    assert job.status == "done" and job.receipt and job.receipt.used is None and job.receipt.fell_back is None


@pytest.mark.parametrize("change", [{"state": "broken"}, {"state": "quarantined"}, {"engines": []}])
def test_a_device_that_cannot_falls_back(tmp_path: Path, change: dict[str, Any]) -> None:
    reason: dict[str, Any] = {} if "engines" in change else {"reason": "It is not well.", "remedy": "Look at it."}
    job = run(tmp_path, ["ok"], replace(CARD, **change, **reason))
    assert job.status == "done" and job.receipt and job.receipt.used == "cpu"


def test_a_device_whose_engines_are_being_checked_is_waited_for(tmp_path: Path) -> None:
    async def play() -> LiveJob:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), faulty("ok"))
        await core.start()
        try:
            await core.probes.wait_until_idle()
            core.probes.devices[CARD.id] = replace(CARD, engines=["torch"], served_by={"base": ["torch"]})
            core.probes._checking[CARD.id] = {"base"}
            job = await core.submit(parse_request({"prompt": "Hi", "device": CARD.id}), "test")
            assert isinstance(job, LiveJob)
            await asyncio.sleep(0.05)
            assert job.status == "queued"
            core.probes.devices[CARD.id] = CARD
            core.probes._checking.clear()
            core.probes._checked.set()
            await job.ended.wait()
            return job
        finally:
            await core.stop()

    job = asyncio.run(play())
    assert job.receipt and (job.receipt.used, job.receipt.fell_back) == (CARD.id, False)


def test_a_crashed_worker_is_replaced_for_the_next_job(tmp_path: Path) -> None:
    left = ["dies_running", "ok"]

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> list[str]:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), spawn)
        await core.start()
        try:
            statuses: list[str] = []
            for _ in range(2):
                job = await core.submit(parse_request({"prompt": "Hi"}), "test")
                assert isinstance(job, LiveJob)
                await job.ended.wait()
                statuses.append(job.status)
            return statuses
        finally:
            await core.stop()

    assert asyncio.run(play()) == ["error", "done"]


def cancelled_at(tmp_path: Path, fault: str, when: Callable[[LiveJob], bool]) -> tuple[LiveJob, float]:
    async def play() -> tuple[LiveJob, float]:
        core = Core(load_settings({"config": _config(tmp_path), "supervision.cancel_s": 0.3}, {}), faulty(fault))
        await core.start()
        try:
            job = await core.submit(parse_request({"prompt": "Hi"}), "test")
            assert isinstance(job, LiveJob)
            async for _ in job.follow():
                if when(job):
                    break
            start = asyncio.get_running_loop().time()
            await core.registry.cancel(job.id)
            await job.ended.wait()
            lane = core.directory.queue("cpu:0")
            async with asyncio.timeout(5), lane.acquire("next"):
                return job, asyncio.get_running_loop().time() - start
        finally:
            await core.stop()

    return asyncio.run(play())


def test_a_cancel_while_loading_ends_the_worker(tmp_path: Path) -> None:
    job, _ = cancelled_at(tmp_path, "silent_loading", lambda job: job.status == "loading")
    assert job.status == "cancelled"


def test_a_cancel_that_is_not_heard_is_carried_out_by_force(tmp_path: Path) -> None:
    job, seconds = cancelled_at(tmp_path, "deaf", lambda job: bool(job.view()["output"]["text"]))
    assert job.status == "cancelled" and seconds < 2 and job.view()["output"]["text"]


@pytest.mark.parametrize("prompts", ["abc", "aaa"])
def test_what_dies_three_times_is_put_aside_until_a_person_lets_it_go(tmp_path: Path, prompts: str) -> None:
    left = ["dies_running"] * 3 + ["ok"]

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> None:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), spawn)
        await core.start()
        try:

            async def ended(prompt: str = "Hi") -> LiveJob:
                job = await core.submit(parse_request({"prompt": prompt, "device": "cpu"}), "test")
                assert isinstance(job, LiveJob)
                await job.ended.wait()
                return job

            await core.probes.wait_until_idle()
            codes = [job.error.code for job in [await ended(prompt) for prompt in prompts] if job.error]
            assert codes == ["worker_crashed"] * 3
            if len(set(prompts)) == 1:
                assert core.directory.device("cpu").quarantined_models == []
                refused = await ended(prompts[0])
                assert refused.error and refused.error.code == "quarantined" and left == ["ok"]
                assert (await ended("another")).status == "done"
                return
            await core.probes.wait_until_idle()
            assert (
                core.directory.device("cpu").quarantined_models == ["tiny"]
                and core.directory.device("cpu").state == "ready"
            )
            report = core.health.health()
            assert report["status"] == "ok", "a bad model does not make the device bad"
            assert [problem["subject"] for problem in report["problems"]] == ["cpu"]
            refused = await ended()
            assert refused.error and refused.error.code == "quarantined" and left == ["ok"]
            with pytest.raises(errors.Quarantined):
                await core.submit(parse_request({"prompt": "Hi", "device": "cpu", "fallback": "never"}), "test")
            core.directory.release("cpu", "tiny")
            await core.probes.wait_until_idle()
            assert (await ended()).status == "done"
            assert core.health.health()["problems"] == [] and core.directory.device("cpu").quarantined_models == []
        finally:
            await core.stop()

    asyncio.run(play())


@pytest.mark.parametrize("waits_for", ["another's load", "the lane, to unload"])
def test_a_cancel_is_heard_while_a_job_waits_for_the_work_of_another(tmp_path: Path, waits_for: str) -> None:
    loading = waits_for == "another's load"

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        worker = "silent_loading" if loading else "deaf"
        return faulty(worker if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> None:
        core = Core(load_settings({"config": _config(tmp_path), "text.slots": 2}, {}), spawn)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            core.probes.devices[CARD.id] = CARD
            request = parse_request({"prompt": "Hi", "device": "vulkan:0"})
            first = await core.submit(request, "test")
            assert isinstance(first, LiveJob)
            async for event in first.follow():
                if event.event == ("loading" if loading else "token"):
                    break
            second = await (core.submit(request, "test") if loading else core.model_jobs.unload("tiny", "test"))
            assert isinstance(second, LiveJob)
            for _ in range(20):  # it comes as far as it can
                await asyncio.sleep(0)
            await core.registry.cancel(second.id)
            await asyncio.wait_for(second.ended.wait(), 1)
            assert second.status == "cancelled" and first.active
        finally:
            await core.stop()

    asyncio.run(play())


def test_a_worker_that_dies_between_its_choice_and_the_job_is_a_crash_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = WorkerPool.acquire

    async def use_and_die(self: WorkerPool, *arguments: Any) -> tuple[LoadedModel, float]:
        held, seconds = await use(self, *arguments)
        os.killpg(held.worker.pid or 0, 9)
        while held.worker.alive:
            await asyncio.sleep(0.01)
        return held, seconds

    monkeypatch.setattr(WorkerPool, "acquire", use_and_die)
    job = run(tmp_path, ["ok"])
    assert (job.status, job.error and job.error.code) == ("error", "worker_crashed")
    assert job.error and "SIGKILL" in job.error.detail


def test_a_device_that_breaks_while_a_job_waits_for_it_is_not_used(tmp_path: Path) -> None:
    async def play() -> None:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), faulty("ok"))
        await core.start()
        try:
            await core.probes.wait_until_idle()
            core.probes.devices[CARD.id] = CARD
            async with core.directory.queue("pci:0000:01:00.0").acquire("holder"):
                job = await core.submit(parse_request({"prompt": "Hi", "device": CARD.id}), "test")
                assert isinstance(job, LiveJob)
                async with asyncio.timeout(5):
                    while not job.progress:  # it has its place in the queue
                        await asyncio.sleep(0.01)
                core.probes.devices[CARD.id] = replace(
                    CARD, state="broken", reason="It fell off the bus.", remedy="Look."
                )
            await job.ended.wait()
            assert job.status == "done" and job.receipt and job.receipt.used == "cpu"
            assert [attempt.error for attempt in job.receipt.attempts] == ["device_not_ready", None]
            assert job.receipt.reason and "fell off the bus" in job.receipt.reason
        finally:
            await core.stop()

    asyncio.run(play())


@pytest.mark.parametrize("prompts", ["abc", "aaa"])
def test_a_device_whose_proof_fails_after_three_deaths_is_quarantined_itself(tmp_path: Path, prompts: str) -> None:
    probes = ["ok", "ok"]  # listing and proving at the start; afterwards every probe dies

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        if arguments[0] == "run":
            return faulty("dies_running")(python, arguments)
        fault = probes.pop(0) if probes and arguments[0] == "probe" else "dies_proving"
        return faulty(fault)(python, arguments)

    async def play() -> None:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), spawn)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            for prompt in prompts:
                job = await core.submit(parse_request({"prompt": prompt, "device": "cpu"}), "test")
                assert isinstance(job, LiveJob)
                await job.ended.wait()
            await core.probes.wait_until_idle()
            device = core.directory.device("cpu")
            if len(set(prompts)) == 1:
                assert device.state == "broken", "one request alone: the device is proved again, and its proof fails"
                return
            assert device.state == "quarantined" and device.reason and "SIGSEGV" in device.reason
            assert core.health.health()["status"] == "degraded" and core.health.health()["devices"]["quarantined"] == 1
            with pytest.raises(errors.Quarantined):
                await core.submit(parse_request({"prompt": "Hi", "device": "cpu", "fallback": "never"}), "test")
        finally:
            await core.stop()

    asyncio.run(play())


def test_a_stop_tells_those_who_wait_nothing_of_places_that_none_will_get(tmp_path: Path) -> None:
    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty("deaf" if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> None:
        settings = {"config": _config(tmp_path), "storage.data_dir": str(tmp_path / "data")}
        core = Core(load_settings(settings, {}), spawn)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            core.probes.devices[CARD.id] = CARD
            request = parse_request({"prompt": "Hi", "device": "vulkan:0"})
            jobs = [await core.submit(request, "test") for _ in range(10)]
            first, *waiting = [job for job in jobs if isinstance(job, LiveJob)]
            async for event in first.follow():
                if event.event == "token":
                    break
            before = [len(job.events) for job in waiting]
            assert len(waiting) == 9 and min(before) > 1
        finally:
            await core.stop()
        assert [len(job.events) for job in waiting] == before
        assert {job.status for job in waiting} == {"queued"} and first.status == "interrupted"

    asyncio.run(play())
