"""A machine that slept is noticed, one that was just busy or set its clock by a little is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend import datafolder
from backend.core import Core
from backend.settings import load_settings
from backend.sleepwatch import SLEEP_S, SleepWatch
from tests.faulty import faulty
from tests.test_running import _config


@pytest.mark.parametrize(
    ("awake_s", "total_s", "slept"),
    [(5, 5, False), (300, 300, False), (5, 5 + SLEEP_S - 1, False), (5, 5 + 3600, True), (5, 5 - 3600, True)],
)
def test_only_a_gap_between_the_clocks_is_a_sleep(awake_s: float, total_s: float, slept: bool) -> None:
    awake, total = iter([100.0, 100.0 + awake_s]), iter([900.0, 900.0 + total_s])
    watch = SleepWatch(lambda: next(awake), lambda: next(total))
    assert bool(watch.slept_s()) == slept


def test_the_real_clocks_go_alike() -> None:
    assert SleepWatch().slept_s() == 0


def test_after_a_sleep_the_devices_are_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafolder, "BEAT_S", 0.01)
    monkeypatch.setattr("backend.housekeeping.BEAT_S", 0.01)
    slept = [0.0]

    async def play() -> None:
        watch = SleepWatch(lambda: 0.0, lambda: slept[0])
        core = Core(load_settings({"config": _config(tmp_path)}, {}), faulty("ok"), watch)
        await core.start()
        try:
            await core.probes.settled()
            first = core.device("cpu").proof
            slept[0] = 3600.0
            async with asyncio.timeout(10):
                while core.device("cpu").proof in (first, None):
                    await asyncio.sleep(0.01)
        finally:
            await core.stop()

    asyncio.run(play())
