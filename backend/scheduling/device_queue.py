"""The queue of one Hardware: fair between callers, first come first served within one caller.

One holder at a time. Jobs for the same loaded model may hold a place together, up to `max_batch`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

# Called with the position (1 is next) and the expected wait in seconds, None before any turn was measured.
OnPosition = Callable[[int, float | None], None]
Turn = contextlib.AbstractAsyncContextManager[None]
NOTIFIED_POSITIONS = 20  # waiters further back get their first position, then none until they come this near
_SMOOTHING = 0.3


def _one() -> int:
    return 1


@dataclass(eq=False)
class _Waiter:
    """A waiter or holder. Holders with an equal `batch_key` share the queue; None shares with no other.

    `max_batch` is asked each time, because a model's slots are known only once it is loaded.
    """

    caller: str
    batch_key: Hashable | None
    max_batch: Callable[[], int]
    on_position: OnPosition
    turn: asyncio.Future[None]
    notified_position: int = 0


class DeviceQueue:
    """A fair queue. `len` returns how many wait."""

    def __init__(self, hardware_id: str) -> None:
        self.hardware_id = hardware_id
        self._waiting: dict[str, deque[_Waiter]] = {}  # by caller, in the order in which callers come next
        self._holders: list[_Waiter] = []
        self._mean_turn_s: float | None = None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def is_busy(self) -> bool:
        """Whether at least one job holds the queue."""
        return bool(self._holders)

    def is_free(self, batch_key: Hashable | None = None, max_batch: Callable[[], int] = _one) -> bool:
        """Return whether `acquire` would return without a wait."""
        return not self._waiting and self._fits(batch_key, max_batch)

    def admit(self) -> None:
        """Give turns to waiters that can share with the holders now, after more slots became known."""
        self._admit_next()
        self._notify_changed()

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        caller: str,
        on_position: OnPosition = lambda position, expected_s: None,
        batch_key: Hashable | None = None,
        max_batch: Callable[[], int] = _one,
    ) -> AsyncIterator[None]:
        """Wait for a turn and hold it. A cancelled wait leaves the queue.

        `on_position` is a callback for each change of the position. Optional.
        """
        clock = asyncio.get_running_loop().time
        waiter = _Waiter(caller, batch_key, max_batch, on_position, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(caller, deque()).append(waiter)
        self._admit_next()
        if waiter not in self._holders:
            self._notify(waiter, self._position_of_last(caller))
            try:
                await waiter.turn
            except asyncio.CancelledError:
                self._remove(waiter)
                raise
        acquired_at = clock()
        try:
            yield
        finally:
            self._record_turn(clock() - acquired_at)
            self._remove(waiter)

    def _admit_next(self) -> None:
        """Give turns to the next waiters, as long as the next one can share with the holders.

        A waiter that does not fit blocks those behind it. Otherwise it could starve behind a popular model.
        """
        while self._waiting:
            caller = next(iter(self._waiting))
            queue = self._waiting[caller]
            waiter = queue[0]
            if not self._fits(waiter.batch_key, waiter.max_batch):
                return
            queue.popleft()
            del self._waiting[caller]
            if queue:
                self._waiting[caller] = queue  # to the end of the round
            self._holders.append(waiter)
            if not waiter.turn.done():
                waiter.turn.set_result(None)

    def _fits(self, batch_key: Hashable | None, max_batch: Callable[[], int]) -> bool:
        if not self._holders:
            return True
        has_slot = batch_key is not None and len(self._holders) < max_batch()
        return has_slot and all(holder.batch_key == batch_key for holder in self._holders)

    def _remove(self, waiter: _Waiter) -> None:
        """Remove a holder or waiter, admit the next ones, and notify those whose position changed."""
        if waiter in self._holders:
            self._holders.remove(waiter)
        elif (queue := self._waiting.get(waiter.caller)) and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[waiter.caller]
        self._admit_next()
        self._notify_changed()

    def _notify_changed(self) -> None:
        for position, waiting in enumerate(self._in_order()[:NOTIFIED_POSITIONS], 1):
            if waiting.notified_position != position:
                self._notify(waiting, position)

    def _notify(self, waiter: _Waiter, position: int) -> None:
        waiter.notified_position = position
        batch = waiter.max_batch() if waiter.batch_key is not None else 1
        expected_s = None if self._mean_turn_s is None else self._mean_turn_s * -(-position // batch)
        waiter.on_position(position, expected_s)

    def _record_turn(self, seconds: float) -> None:
        mean = self._mean_turn_s
        self._mean_turn_s = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)

    def _position_of_last(self, caller: str) -> int:
        """Return the position of the last waiter of a caller, without sorting all of them."""
        round_, ahead = len(self._waiting[caller]) - 1, True
        position = 0
        for other, queue in self._waiting.items():
            ahead = ahead and other != caller
            position += round_ + 1 if other == caller else min(len(queue), round_ + ahead)
        return position

    def _in_order(self) -> list[_Waiter]:
        """Return the waiters in the order of their turns: callers in rounds."""
        queues = [list(queue) for queue in self._waiting.values()]
        rounds = range(max(map(len, queues), default=0))
        return [queue[number] for number in rounds for queue in queues if number < len(queue)]


@dataclass(frozen=True)
class QueueRequest:
    """A turn to wait for: in which queue, and what it can be shared with."""

    queue: DeviceQueue
    batch_key: Hashable | None = None
    max_batch: Callable[[], int] = _one

    @property
    def is_free(self) -> bool:
        """Whether the turn comes without a wait."""
        return self.queue.is_free(self.batch_key, self.max_batch)

    def acquire(self, caller: str, on_position: OnPosition) -> Turn:
        """Wait for the turn and hold it."""
        return self.queue.acquire(caller, on_position, self.batch_key, self.max_batch)


@contextlib.asynccontextmanager
async def acquire_first(requests: Sequence[QueueRequest], caller: str, on_position: OnPosition) -> AsyncIterator[int]:
    """Wait in several queues at once and hold the first turn that comes; yield the index of its request.

    If several are free now, the first of them is taken.
    """
    for index, request in enumerate(requests):
        if request.is_free:
            async with request.acquire(caller, on_position):
                yield index
            return
    best_position = _BestPosition(on_position)
    turns = [request.acquire(caller, best_position.callback_for(index)) for index, request in enumerate(requests)]
    waits = [asyncio.ensure_future(turn.__aenter__()) for turn in turns]
    held: Turn | None = None
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        first = next(index for index, wait in enumerate(waits) if wait.done())
        held = turns[first]
        await _leave((turn, wait) for turn, wait in zip(turns, waits, strict=True) if turn is not held)
        yield first
    finally:
        if held is None:
            await _leave(zip(turns, waits, strict=True))
        else:
            await held.__aexit__(None, None, None)


async def _leave(waits: Iterable[tuple[Turn, asyncio.Future[None]]]) -> None:
    """Leave the queues, and release turns that came at the same moment."""
    for turn, wait in waits:
        if wait.done():
            await turn.__aexit__(None, None, None)
        else:
            wait.cancel()


class _BestPosition:
    """Reports the best of the positions in several queues."""

    def __init__(self, on_position: OnPosition) -> None:
        self._on_position = on_position
        self._positions: dict[int, tuple[int, float | None]] = {}

    def callback_for(self, index: int) -> OnPosition:
        """Return the callback for one of the queues."""

        def update(position: int, expected_s: float | None) -> None:
            before = self._best()
            self._positions[index] = position, expected_s
            if (now := self._best()) and now != before:
                self._on_position(*now)

        return update

    def _best(self) -> tuple[int, float | None] | None:
        return min(self._positions.values(), default=None, key=lambda position: position[0])
