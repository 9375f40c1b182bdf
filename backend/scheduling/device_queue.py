"""A lane: the queue of one Hardware. Fair between callers, first come first served within one.

One turn at a time, except that jobs for the same loaded model may share it, up to the model's slots.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass

# Called with the position (1 comes next) and the seconds until the turn, None before any turn was measured.
OnPosition = Callable[[int, float | None], None]
TOLD = 20  # who waits further behind is told once, and then when it comes nearer
_SMOOTHING = 0.3


@dataclass(eq=False)
class _Waiter:
    """One that waits, or holds a turn. `share` is what it can share the turn with; None shares with nothing."""

    caller: str
    share: Hashable | None
    slots: int
    on_position: OnPosition
    turn: asyncio.Future[None]
    told: int = 0  # the position it was last told


class DeviceQueue:
    """Hands out turns; `len` is how many wait."""

    def __init__(self, hardware_id: str) -> None:
        self.hardware_id = hardware_id
        self._waiting: dict[str, deque[_Waiter]] = {}  # by caller, in the order in which callers come next
        self._holders: list[_Waiter] = []
        self._mean_turn_s: float | None = None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def is_busy(self) -> bool:
        """Whether a turn is taken."""
        return bool(self._holders)

    def is_free(self, share: Hashable | None = None, slots: int = 1) -> bool:
        """Whether a turn would be had at once."""
        return not self._waiting and self._fits(share, slots)

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        caller: str,
        on_position: OnPosition = lambda position, expected_s: None,
        share: Hashable | None = None,
        slots: int = 1,
    ) -> AsyncIterator[None]:
        """Waits for a turn and holds it. Cancelling the wait gives the place up."""
        clock = asyncio.get_running_loop().time
        ticket = _Waiter(caller, share, slots, on_position, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(caller, deque()).append(ticket)
        self._admit()
        if ticket not in self._holders:
            self._tell(ticket, self._place_of_last(caller))
            try:
                await ticket.turn
            except asyncio.CancelledError:
                self._withdraw(ticket)
                raise
        began = clock()
        try:
            yield
        finally:
            self._measure(clock() - began)
            self._withdraw(ticket)

    def _admit(self) -> None:
        """Gives turns to those that come next, as long as the next one fits beside the holders.

        One that does not fit is not overtaken by one that would: it would wait for ever behind a popular model.
        """
        while self._waiting:
            caller = next(iter(self._waiting))
            queue = self._waiting[caller]
            ticket = queue[0]
            if not self._fits(ticket.share, ticket.slots):
                return
            queue.popleft()
            del self._waiting[caller]
            if queue:
                self._waiting[caller] = queue  # to the end of the round
            self._holders.append(ticket)
            if not ticket.turn.done():
                ticket.turn.set_result(None)

    def _fits(self, share: Hashable | None, slots: int) -> bool:
        if not self._holders:
            return True
        beside = share is not None and len(self._holders) < slots
        return beside and all(holder.share == share for holder in self._holders)

    def _withdraw(self, ticket: _Waiter) -> None:
        if ticket in self._holders:
            self._holders.remove(ticket)
        elif (queue := self._waiting.get(ticket.caller)) and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.caller]
        self._admit()
        for position, waiting in enumerate(self._order()[:TOLD], 1):
            if waiting.told != position:
                self._tell(waiting, position)

    def _tell(self, ticket: _Waiter, position: int) -> None:
        ticket.told = position
        at_once = ticket.slots if ticket.share is not None else 1
        expected_s = None if self._mean_turn_s is None else self._mean_turn_s * -(-position // at_once)
        ticket.on_position(position, expected_s)

    def _measure(self, seconds: float) -> None:
        mean = self._mean_turn_s
        self._mean_turn_s = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)

    def _place_of_last(self, caller: str) -> int:
        """The position of the last one in a caller's queue, without putting all in order."""
        round_, ahead = len(self._waiting[caller]) - 1, True
        place = 0
        for other, queue in self._waiting.items():
            ahead = ahead and other != caller
            place += round_ + 1 if other == caller else min(len(queue), round_ + ahead)
        return place

    def _order(self) -> list[_Waiter]:
        """Those who wait, in the order in which turns will be given: callers in rounds."""
        queues = [list(queue) for queue in self._waiting.values()]
        rounds = range(max(map(len, queues), default=0))
        return [queue[number] for number in rounds for queue in queues if number < len(queue)]
