"""A suspended machine is detected, a busy one is not, and setting the clock expires nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common import data_dir
from backend.common.config.settings import load_settings
from backend.common.system.suspend import SLEEP_S, ClockJumpDetector, SuspendDetector
from backend.common.timestamps import timestamp
from backend.jobs.live_job import new_row
from backend.jobs.registry import JobRegistry
from backend.jobs.store.sqlite import JobStore
from backend.manager.background import Housekeeping
from backend.manager.core import Core
from tests.faulty import faulty
from tests.test_executor import _config


@pytest.mark.parametrize(
    ("awake_s", "total_s", "slept"),
    [(5, 5, False), (300, 300, False), (5, 5 + SLEEP_S - 1, False), (5, 5 + 3600, True), (5, 5 - 3600, True)],
)
def test_only_a_gap_between_the_clocks_is_a_sleep(awake_s: float, total_s: float, slept: bool) -> None:
    awake, total = iter([100.0, 100.0 + awake_s]), iter([900.0, 900.0 + total_s])
    watch = SuspendDetector(lambda: next(awake), lambda: next(total))
    assert bool(watch.slept_s()) == slept


def test_the_real_clocks_go_alike() -> None:
    assert SuspendDetector().slept_s() == 0


def test_after_a_sleep_the_devices_are_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dir, "BEAT_S", 0.01)
    monkeypatch.setattr("backend.manager.background.BEAT_S", 0.01)
    slept = [0.0]

    async def play() -> None:
        watch = SuspendDetector(lambda: 0.0, lambda: slept[0])
        core = Core(load_settings({"config": _config(tmp_path)}, {}), faulty("ok"), watch)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            first = core.directory.device("cpu").proof
            slept[0] = 3600.0
            async with asyncio.timeout(10):
                while core.directory.device("cpu").proof in (first, None):
                    await asyncio.sleep(0.01)
        finally:
            await core.stop()

    asyncio.run(play())


DAY_S = 86_400.0


class Watched(JobStore):
    """A store that tells when it has swept."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.swept = asyncio.Event()

    async def sweep(self, before: str, keep_bytes: int) -> int:
        """As ever."""
        gone = await super().sweep(before, keep_bytes)
        self.swept.set()
        return gone


@pytest.mark.parametrize(("set_days", "left"), [(0, 1), (400, 2), (-400, 1)])
def test_a_clock_set_forward_makes_no_job_old(tmp_path: Path, set_days: int, left: int) -> None:
    """One job ended just now, one 390 days ago by a clock that was set forward by 400, or was not."""
    wall, steady = [0.0], [0.0]
    jumps = ClockJumpDetector(lambda: wall[0], lambda: steady[0])
    wall[0], steady[0] = 7 * DAY_S + set_days * DAY_S, 7 * DAY_S

    async def play() -> None:
        store = Watched(tmp_path / "jobs.sqlite3")
        await store.open()
        for ago in (0, 390):
            ended = timestamp(timedelta(days=ago))
            await store.add({**new_row("text", "m", {}, "c"), "status": "done", "ended_at": ended})
        settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
        registry: Any = SimpleNamespace(storage_error=None)
        unused: Any = None
        housekeeping = Housekeeping(settings, unused, unused, registry, unused, store, unused, unused)
        sweeping = asyncio.create_task(housekeeping.expire_jobs(jumps))
        await store.swept.wait()
        sweeping.cancel()
        assert len(await store.jobs()) == left
        await store.close()

    asyncio.run(play())


def test_the_real_clocks_have_not_jumped() -> None:
    assert abs(ClockJumpDetector().jumped_s()) < 1


def test_after_a_start_with_a_clock_set_back_new_ids_still_sort_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.live_job._last_stamp", 0)

    async def life() -> str:
        book = JobRegistry(JobStore(tmp_path / "jobs.sqlite3"))
        await book.open()
        job = await book.add(new_row("text", "m", {}, "c"))
        await book.close()
        return job.id

    monkeypatch.setattr("backend.jobs.live_job.time.time_ns", lambda: 2_000_000_000 * 10**9)
    first = asyncio.run(life())
    monkeypatch.setattr("backend.jobs.live_job._last_stamp", 0)
    monkeypatch.setattr("backend.jobs.live_job.time.time_ns", lambda: 1_900_000_000 * 10**9)
    assert asyncio.run(life()) > first
