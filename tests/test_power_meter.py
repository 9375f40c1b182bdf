"""Energy of a benchmark run: from counters, from samples of a card's power, or None."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from backend.common.types import Device
from backend.manager.benchmarks import power_meter

CARD = Device("rocm:0", "A card", "rocm", "gpu", "ready", hardware_id="pci:0000:01:00.0")


def metered(device: Device) -> power_meter.PowerMeter:
    async def play() -> power_meter.PowerMeter:
        async with power_meter.PowerMeter(device) as one:
            await asyncio.sleep(0.03)  # the round: what it takes, it takes in some time
        return one

    return asyncio.run(play())


def test_a_counter_of_the_card_gives_the_watts_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: Iterator[float] = iter((50.0, 56.0))
    monkeypatch.setattr(power_meter, "card_j", lambda _: next(figures))
    watts = metered(CARD).card_w
    assert watts is not None and 0 < watts <= 6.0 / 0.03


def test_a_counter_that_began_anew_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: Iterator[float] = iter((50.0, 1.0))
    monkeypatch.setattr(power_meter, "card_j", lambda _: next(figures))
    assert metered(CARD).card_w is None


def test_a_card_without_a_counter_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[float | None] = iter((40.0, 60.0, None))
    monkeypatch.setattr(power_meter, "SAMPLE_S", 0.001)
    monkeypatch.setattr(power_meter, "card_j", lambda _: None)
    monkeypatch.setattr(power_meter, "card_w", lambda _: next(looks, None))
    assert metered(CARD).card_w in (40.0, 50.0)


def test_the_processor_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_meter, "card_j", lambda _: pytest.fail("it was asked for a card"))
    assert metered(Device("cpu", "A processor", "cpu", "cpu", "ready", hardware_id="cpu:0")).card_w is None
