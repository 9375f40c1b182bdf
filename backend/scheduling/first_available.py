"""The first of several turns: a job that may run on several hardwares waits in all their lanes at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from dataclasses import dataclass

from backend.scheduling.device_queue import DeviceQueue, OnPosition

Turn = contextlib.AbstractAsyncContextManager[None]


@dataclass(frozen=True)
class QueueRequest:
    """A turn that would do: in which lane, and what it can be shared with."""

    queue: DeviceQueue
    batch_key: Hashable | None = None
    max_batch: int = 1


@contextlib.asynccontextmanager
async def acquire_first(wanted: Sequence[QueueRequest], caller: str, on_position: OnPosition) -> AsyncIterator[int]:
    """Holds the turn that comes first, whose number it gives; of those that are free now the first one."""
    for number, one in enumerate(wanted):
        if one.queue.is_free(one.batch_key, one.max_batch):
            async with one.queue.acquire(caller, on_position, one.batch_key, one.max_batch):
                yield number
            return
    nearest = _Nearest(on_position)
    turns = [
        one.queue.acquire(caller, nearest.of(number), one.batch_key, one.max_batch) for number, one in enumerate(wanted)
    ]
    entering = [asyncio.ensure_future(turn.__aenter__()) for turn in turns]
    held: Turn | None = None
    try:
        await asyncio.wait(entering, return_when=asyncio.FIRST_COMPLETED)
        place = next(number for number, task in enumerate(entering) if task.done())
        held = turns[place]
        await _give_up((turn, task) for turn, task in zip(turns, entering, strict=True) if turn is not held)
        yield place
    finally:
        if held is None:
            await _give_up(zip(turns, entering, strict=True))
        else:
            await held.__aexit__(None, None, None)


async def _give_up(waits: Iterable[tuple[Turn, asyncio.Future[None]]]) -> None:
    """Leaves the queues, and gives back what came at the same moment."""
    for turn, task in waits:
        if task.done():
            await turn.__aexit__(None, None, None)
        else:
            task.cancel()


class _Nearest:
    """Tells the best of the places in several queues."""

    def __init__(self, on_position: OnPosition) -> None:
        self._on_position = on_position
        self._places: dict[int, tuple[int, float | None]] = {}

    def of(self, number: int) -> OnPosition:
        """What one of the lanes tells."""

        def tell(position: int, expected_s: float | None) -> None:
            before = self._best()
            self._places[number] = position, expected_s
            if (now := self._best()) and now != before:
                self._on_position(*now)

        return tell

    def _best(self) -> tuple[int, float | None] | None:
        return min(self._places.values(), default=None, key=lambda place: place[0])
