"""Several devices for one job: shares, progress, one receipt, and a failing device."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from backend.common import errors
from backend.common.config.settings import load_settings
from backend.common.types import Device, Progress, Speed
from backend.jobs.generate_request import parse_request
from backend.jobs.live_job import LiveJob
from backend.jobs.multi_device.division import ShareSpec, divide
from backend.jobs.multi_device.progress import CombinedProgress
from backend.manager.core import Core
from tests.faulty import faulty

VARIATIONS = 5
Play = Callable[[Core], Awaitable[Any]]


def card(name: str, hardware: int, **more: Any) -> Device:
    return Device(
        name, f"Card {name}", name.partition(":")[0], "gpu", "ready", "runs", ["base"],
        hardware_id=f"pci:0000:0{hardware}:00.0", tasks=["music"], engines=["torch"], served_by={"base": ["torch"]},
        **more,
    )  # fmt: skip


CARDS = (card("cuda:0", 1), card("cuda:1", 2))
ASKED = {"task": "music", "devices": ["cuda:0", "cuda:1"], "options": {"variations": VARIATIONS, "seed": 7}}


def played(tmp_path: Path, faults: str, play: Play, cards: tuple[Device, ...] = CARDS) -> Any:
    """Runs a manager with these cards, whose workers play faults."""

    async def whole() -> Any:
        settings = load_settings({"storage.data_dir": str(tmp_path / "data"), "supervision.cancel_s": 0.3}, {})
        core = Core(settings, faulty(faults))
        await core.start()
        try:
            await core.probes.wait_until_idle()
            core.probes.devices.update({one.id: one for one in cards})
            return await play(core)
        finally:
            await core.stop()

    return asyncio.run(whole())


async def begun(core: Core, **body: Any) -> LiveJob:
    job = await core.submit(parse_request({**ASKED, **body}), "test")
    assert isinstance(job, LiveJob)
    return job


def run(tmp_path: Path, faults: str = "ok", cards: tuple[Device, ...] = CARDS, **body: Any) -> LiveJob:
    async def play(core: Core) -> LiveJob:
        job = await begun(core, **body)
        await job.ended.wait()
        return job

    job: LiveJob = played(tmp_path, faults, play, cards)
    return job


def files(tmp_path: Path, job: LiveJob) -> dict[str, str]:
    """Which device made each file of a job; what is listed is there, and nothing else."""
    folder = tmp_path / "data" / "artifacts" / job.id
    found = {file.name: file.read_text() for file in folder.iterdir()}
    assert sorted(found) == sorted(artifact.name for artifact in job.artifacts)
    return found


def turns(job: LiveJob) -> list[tuple[str, str, str | None]]:
    assert job.receipt
    return [(one.started_at, one.ended_at or "", one.error) for one in job.receipt.attempts]


def test_variations_are_made_by_several_devices_as_one_job(tmp_path: Path) -> None:
    job = run(tmp_path)
    assert job.status == "done" and job.receipt, job.error
    assert files(tmp_path, job) == {f"tune-{n}.txt": "cuda:0" if n <= 3 else "cuda:1" for n in range(1, 6)}
    receipt = job.receipt
    assert (receipt.asked, receipt.used, receipt.fell_back) == ("cuda:0, cuda:1", "cuda:0, cuda:1", False)
    assert [(part.used, part.variations) for part in receipt.parts] == [("cuda:0", [1, 2, 3]), ("cuda:1", [4, 5])]
    assert (
        receipt.resolved_reason.endswith("1 to 3 on cuda:0, 4 to 5 on cuda:1.")
        and "same time" in receipt.resolved_reason
    )
    assert len({part.worker_pid for part in receipt.parts}) == 2 and receipt.counts["tokens"] == 10
    assert receipt.placement and receipt.placement.on_device == 1.0 and len(receipt.placement.parts) == 2
    assert job.text == "xxxxx", "the first share alone tells the text"
    names = [event.event for event in job.events if event.event not in ("token", "progress", "artifact")]
    assert names == ["queued", "loading", "running", "done"]
    progress = [event.data for event in job.events if event.event == "progress" and event.data["phase"] == "making"]
    totals = [each["total"] for each in progress]  # a share is counted from its first progress on
    assert (progress[-1]["done"], totals[-1]) == (5, 5) and totals == sorted(totals) and set(totals) <= {2, 3, 5}


def test_one_share_after_another(tmp_path: Path) -> None:
    job = run(tmp_path, spread="sequential")
    assert job.status == "done" and set(files(tmp_path, job).values()) == {"cuda:0", "cuda:1"}
    (_, first_end, _), (second_start, _, _) = turns(job)
    assert first_end <= second_start


def test_ways_to_one_card_take_turns(tmp_path: Path) -> None:
    same = (CARDS[0], card("vulkan:0", 1))
    job = run(tmp_path, cards=same, devices=["cuda:0", "vulkan:0"], spread="parallel")
    assert job.status == "done" and set(files(tmp_path, job).values()) == {"cuda:0", "vulkan:0"}
    (_, first_end, _), (second_start, _, _) = sorted(turns(job))
    assert first_end <= second_start


@pytest.mark.parametrize("fault", ["dies_running", "dies_loading", "no_memory", "device_lost", "elsewhere", "nonsense"])
def test_a_faulty_device_costs_time_and_not_the_job(tmp_path: Path, fault: str) -> None:
    job = run(tmp_path, f"cuda:1={fault}", spread="sequential")  # the other has told all of its share by then
    assert job.status == "done" and job.receipt, job.error
    assert set(files(tmp_path, job)) == {f"tune-{n}.txt" for n in range(1, 6)}
    assert set(files(tmp_path, job).values()) == {"cuda:0"}
    code = next(attempt.error for attempt in job.receipt.attempts if attempt.error)
    fallback = next(event for event in job.events if event.event == "fallback")
    assert (fallback.data["from"], fallback.data["to"], fallback.data["code"]) == ("cuda:1", "cuda:0", code)
    assert [(part.used, part.fell_back) for part in job.receipt.parts] == [("cuda:0", False), ("cuda:0", True)]
    assert (job.receipt.used, job.receipt.fell_back) == ("cuda:0", True) and code in (job.receipt.reason or "")
    since = job.events[job.events.index(fallback) + 1 :]
    assert "".join(event.data["text"] for event in since if event.event == "token") == job.text == "xxxxx"
    shown = [event.data["name"] for event in since if event.event == "artifact"]
    assert sorted(shown) == sorted(one.name for one in job.artifacts) and len(job.artifacts) == VARIATIONS


def test_a_fault_of_the_first_share_tells_the_text_anew(tmp_path: Path) -> None:
    job = run(tmp_path, "cuda:0=dies_running")
    assert job.status == "done" and job.text == "xxxxx" and set(files(tmp_path, job).values()) == {"cuda:1"}


def test_a_device_that_is_not_ready_gets_no_share(tmp_path: Path) -> None:
    gone = card("cuda:1", 2, reason="It is gone.", remedy="Plug it in.")
    job = run(tmp_path, cards=(CARDS[0], gone.__class__(**{**vars(gone), "state": "unavailable"})))
    assert job.status == "done" and set(files(tmp_path, job).values()) == {"cuda:0"} and job.receipt
    assert [(one.device, one.error) for one in job.receipt.attempts] == [
        ("cuda:1", "device_not_ready"),
        ("cuda:0", None),
    ]
    assert len(job.receipt.parts) == 1 and "cuda:1 could not be used (device_not_ready)" in (job.receipt.reason or "")


def test_a_job_that_kills_its_workers_is_not_carried_from_card_to_card(tmp_path: Path) -> None:
    cards = tuple(card(f"cuda:{number}", number + 1) for number in range(4))
    faults = ",".join(f"cuda:{number}=dies_running" for number in range(4))
    job = run(tmp_path, faults, cards, devices=[one.id for one in cards], spread="first_free")
    assert job.error and job.error.code == "worker_crashed" and job.receipt
    assert [one.error for one in job.receipt.attempts] == ["worker_crashed", "worker_crashed"]


def test_when_all_named_devices_fail_the_policy_decides(tmp_path: Path) -> None:
    job = run(tmp_path, "cuda:0=no_memory,cuda:1=no_memory", fallback="never")
    assert job.error and job.error.code == "out_of_memory" and not job.artifacts
    job = run(tmp_path / "again", "cuda:0=no_memory,cuda:1=no_memory", CARDS + (PROCESSOR,))
    assert job.status == "done" and set(files(tmp_path / "again", job).values()) == {"cpu"}


PROCESSOR = Device(
    "cpu", "CPU", "cpu", "cpu", "ready", "runs", ["base"], hardware_id="cpu:0", tasks=["music"],
    engines=["onnxruntime"], served_by={"base": ["onnxruntime"]},
)  # fmt: skip


def test_a_cancel_ends_all_shares(tmp_path: Path) -> None:
    async def play(core: Core) -> LiveJob:
        job = await begun(core)
        async for _ in job.follow():
            if len(job.artifacts) == 2:  # each of them works
                break
        await core.registry.cancel(job.id)
        await job.ended.wait()
        assert (
            not core.directory.queue("pci:0000:01:00.0").is_busy
            and not core.directory.queue("pci:0000:02:00.0").is_busy
        )
        return job

    job = played(tmp_path, "cuda:0=deaf,cuda:1=deaf", play)
    assert job.status == "cancelled" and job.receipt
    assert {one.error for one in job.receipt.attempts} == {"job_cancelled"}


def test_any_of_these_is_the_one_that_is_free(tmp_path: Path) -> None:
    async def play(core: Core) -> list[LiveJob]:
        async with core.directory.queue("pci:0000:01:00.0").acquire("another"):
            job = await begun(core, spread="first_free")
            await job.ended.wait()
        others = [await begun(core, spread="first_free") for _ in range(4)]
        await asyncio.gather(*(other.ended.wait() for other in others))
        return [job, *others]

    first, *others = played(tmp_path, "ok", play)
    assert set(files(tmp_path, first).values()) == {"cuda:1"} and first.receipt
    assert first.receipt.resolved == "cuda:1" and "first free device" in first.receipt.resolved_reason
    assert {one.receipt.used for one in others} == {"cuda:0", "cuda:1"}, "equal cards share a queue"
    assert all(one.status == "done" and not one.receipt.fell_back for one in others)


def test_a_wait_in_several_lanes_leaves_all_when_it_is_cancelled(tmp_path: Path) -> None:
    async def play(core: Core) -> None:
        lanes = [core.directory.queue(f"pci:0000:0{number}:00.0") for number in (1, 2)]
        async with lanes[0].acquire("another"), lanes[1].acquire("another"):
            job = await begun(core, spread="first_free")
            async for event in job.follow():
                if event.event == "progress":
                    break
            assert [len(lane) for lane in lanes] == [1, 1]
            await core.registry.cancel(job.id)
            await job.ended.wait()
            assert [len(lane) for lane in lanes] == [0, 0] and job.status == "cancelled"

    played(tmp_path, "ok", play)


def test_shares_follow_the_speeds_where_all_are_known() -> None:
    assert divide(5, ["a", "b"], [None, 9.0]) == [ShareSpec("a", 0, 3), ShareSpec("b", 3, 2)]
    assert divide(8, ["a", "b"], [30.0, 10.0]) == [ShareSpec("a", 0, 6), ShareSpec("b", 6, 2)]
    assert divide(2, ["a", "b", "c"], [1.0, 50.0, 50.0]) == [ShareSpec("b", 0, 1), ShareSpec("c", 1, 1)]
    for number in range(1, 17):
        shares = divide(number, ["a", "b", "c"], [3.0, 2.0, 1.5])
        assert [each for share in shares for each in share.numbers] == list(range(1, number + 1))


def test_measured_cards_get_shares_by_their_speed(tmp_path: Path) -> None:
    speeds = [Speed("folk-tunes", "torch", value, "× real time", "2026-01-01T00:00:00Z") for value in (10.0, 40.0)]
    job = run(tmp_path, cards=(card("cuda:0", 1, speed=speeds[:1]), card("cuda:1", 2, speed=speeds[1:])))
    assert list(files(tmp_path, job).values()).count("cuda:1") == 4
    assert job.receipt and "measured speeds" in job.receipt.resolved_reason


def test_the_progress_is_that_of_the_slowest_phase() -> None:
    joint = CombinedProgress([2, 2], clock=lambda: 0.0)
    assert joint.update(0, Progress("composing", 1, 8, "bars")).total == 16, "the other will take as much"
    joint.update(1, Progress("composing", 4, 8, "bars"))
    joint.update(0, Progress("composing", 8, 8, "bars"))
    said = joint.update(0, Progress("rendering", 3, 10, "seconds"))
    assert (said.phase, said.done, said.total) == ("composing", 12, 16)
    said = joint.update(1, Progress("rendering", 1, 10, "seconds"))
    assert (said.phase, said.done, said.total) == ("rendering", 4, 20)
    joint.complete(0)
    assert joint.update(1, Progress("rendering", 2, 10, "seconds")).done == 12


def test_one_that_still_loads_is_waited_for() -> None:
    joint = CombinedProgress([3, 2], clock=lambda: 0.0)
    joint.update(0, Progress("making", 1, 3, "files"))
    said = joint.update(1, Progress("load", 5, 100, "bytes"))
    assert (said.phase, said.done, said.total) == ("load", 5, 100)
    said = joint.update(1, Progress("making", 1, 2, "files"))
    assert (said.phase, said.done, said.total) == ("making", 2, 5)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"device": "cpu", "devices": ["cuda:0"]}, "device"),
        ({"spread": "parallel"}, "devices"),
        ({"devices": []}, "devices"),
        ({"devices": ["cuda:0"], "spread": "sideways"}, "first_free"),
    ],
)
def test_what_contradicts_itself_is_refused(body: dict[str, Any], word: str) -> None:
    with pytest.raises(errors.Validation, match=word):
        parse_request({"task": "music", **body})
