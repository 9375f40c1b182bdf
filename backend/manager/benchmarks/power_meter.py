"""Measures the power of processors and card during a round, and the free memory of the card."""

from __future__ import annotations

import asyncio
import statistics
import time
from types import TracebackType

from backend.common.system.power import processor_j
from backend.common.types import Device
from backend.scheduling.card_sensors import card_free_bytes, card_j, card_w

SAMPLE_S = 0.5  # between two readings of a card without an energy counter; shorter rounds have no figure


class PowerMeter:
    """Context manager that reads energy counters before and after its block.

    A card without a counter is sampled. `processors_w` and `card_w` are None if they cannot be read.
    """

    def __init__(self, device: Device) -> None:
        self._card = device.hardware_id if device.kind in ("gpu", "integrated") else None
        self._sampling: asyncio.Task[None] | None = None
        self._samples: list[float] = []
        self.processors_w: float | None = None
        self.card_w: float | None = None

    async def __aenter__(self) -> PowerMeter:
        self._card_j = await asyncio.to_thread(card_j, self._card) if self._card else None
        if self._card and self._card_j is None:
            self._sampling = asyncio.create_task(self._sample(self._card))
        self._joules, self._started_at = processor_j(), time.perf_counter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processors_w = _watts(self._joules, processor_j(), self._started_at)
        if self._sampling:
            self._sampling.cancel()
            self.card_w = statistics.fmean(self._samples) if self._samples else None
        elif self._card and kind is None:
            self.card_w = _watts(self._card_j, await asyncio.to_thread(card_j, self._card), self._started_at)

    async def _sample(self, card: str) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if (watts := await asyncio.to_thread(card_w, card)) is None:
                return
            self._samples.append(watts)


async def free_bytes(device: Device) -> int | None:
    """Return the free bytes of a card's own memory; None if unknown, or if the device uses the machine's memory."""
    return await asyncio.to_thread(card_free_bytes, device.hardware_id or "") if device.kind == "gpu" else None


def _watts(before_j: float | None, after_j: float | None, started_at: float) -> float | None:
    """Return the mean power; None if a counter is missing or wrapped around."""
    if before_j is None or after_j is None or after_j <= before_j:
        return None
    return (after_j - before_j) / (time.perf_counter() - started_at)
