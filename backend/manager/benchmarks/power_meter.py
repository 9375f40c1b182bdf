"""What a round of a measurement takes: watts of the processors and of the card, memory of the card."""

from __future__ import annotations

import asyncio
import statistics
import time
from types import TracebackType

from backend.common.hardware.energy import card_j, card_w
from backend.common.hardware.free_memory import card_free_bytes
from backend.common.system.power import processor_j
from backend.common.types import Device

SAMPLE_S = 0.5  # between two looks at a card that has no counter; a shorter round is not told


class PowerMeter:
    """Reads counters before and after; a card without one is looked at now and then. None where nothing tells."""

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
        self._joules, self._began = processor_j(), time.perf_counter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processors_w = _watts(self._joules, processor_j(), self._began)
        if self._sampling:
            self._sampling.cancel()
            self.card_w = statistics.fmean(self._samples) if self._samples else None
        elif self._card and kind is None:
            self.card_w = _watts(self._card_j, await asyncio.to_thread(card_j, self._card), self._began)

    async def _sample(self, card: str) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if (watts := await asyncio.to_thread(card_w, card)) is None:
                return
            self._samples.append(watts)


async def free_bytes(device: Device) -> int | None:
    """What is free of a card's own memory now; None where nothing tells, or it has none of its own."""
    return await asyncio.to_thread(card_free_bytes, device.hardware_id or "") if device.kind == "gpu" else None


def _watts(before_j: float | None, after_j: float | None, began: float) -> float | None:
    """The counters begin anew now and then: then nothing is known."""
    if before_j is None or after_j is None or after_j <= before_j:
        return None
    return (after_j - before_j) / (time.perf_counter() - began)
