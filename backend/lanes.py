"""A lane: the queue of one Hardware. Fair between callers, first come first served within one.

One turn at a time, except that jobs for the same loaded model may share it, up to the model's slots.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass


@dataclass(eq=False)
class _Ticket:
    """One that waits, or holds a turn. `share` is what it can share the turn with; None shares with nothing."""

    caller: str
    share: Hashable | None
    slots: int
    turn: asyncio.Future[None]


class Lane:
    """Hands out turns; `len` is how many wait."""

    def __init__(self, hardware_id: str) -> None:
        self.hardware_id = hardware_id
        self._waiting: dict[str, deque[_Ticket]] = {}  # by caller, in the order in which callers come next
        self._holders: list[_Ticket] = []

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def busy(self) -> bool:
        """Whether a turn is taken."""
        return bool(self._holders)

    @contextlib.asynccontextmanager
    async def turn(
        self,
        caller: str,
        on_position: Callable[[int], None] = lambda _: None,
        share: Hashable | None = None,
        slots: int = 1,
    ) -> AsyncIterator[None]:
        """Waits for a turn and holds it. Cancelling the wait gives the place up."""
        ticket = _Ticket(caller, share, slots, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(caller, deque()).append(ticket)
        self._admit()
        if ticket not in self._holders:
            on_position(self._position(ticket))
            try:
                await ticket.turn
            except asyncio.CancelledError:
                self._withdraw(ticket)
                raise
        try:
            yield
        finally:
            self._withdraw(ticket)

    def _admit(self) -> None:
        """Gives turns to those that come next, as long as the next one fits beside the holders.

        One that does not fit is not overtaken by one that would: it would wait for ever behind a popular model.
        """
        while self._waiting:
            caller = next(iter(self._waiting))
            queue = self._waiting[caller]
            ticket = queue[0]
            alone = not self._holders
            fits = ticket.share is not None and len(self._holders) < ticket.slots
            if not alone and not (fits and all(holder.share == ticket.share for holder in self._holders)):
                return
            queue.popleft()
            del self._waiting[caller]
            if queue:
                self._waiting[caller] = queue  # to the end of the round
            self._holders.append(ticket)
            if not ticket.turn.done():
                ticket.turn.set_result(None)

    def _withdraw(self, ticket: _Ticket) -> None:
        if ticket in self._holders:
            self._holders.remove(ticket)
        elif (queue := self._waiting.get(ticket.caller)) and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.caller]
        self._admit()

    def _position(self, wanted: _Ticket) -> int:
        """1 for the one that comes next, by the order in which turns will be given."""
        queues = [list(queue) for queue in self._waiting.values()]
        ahead = 0
        for round_number in range(max(map(len, queues), default=0)):
            for queue in queues:
                if round_number < len(queue):
                    ahead += 1
                    if queue[round_number] is wanted:
                        return ahead
        return ahead
