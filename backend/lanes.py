"""A lane: the queue of one Hardware. One turn at a time, fair between callers, first come first served within one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

Waiter = asyncio.Future[None]


class Lane:
    """Hands out turns; `len` is how many wait."""

    def __init__(self, hardware_id: str) -> None:
        self.hardware_id = hardware_id
        self._waiting: dict[str, deque[Waiter]] = {}  # by caller, in the order in which callers come next
        self._busy = False

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def busy(self) -> bool:
        """Whether a turn is taken."""
        return self._busy

    @contextlib.asynccontextmanager
    async def turn(self, caller: str, on_position: Callable[[int], None] = lambda _: None) -> AsyncIterator[None]:
        """Waits for a turn and holds it. Cancelling the wait gives the place up."""
        if self._busy or self._waiting:
            waiter: Waiter = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(caller, deque()).append(waiter)
            on_position(self._position(waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                self._withdraw(caller, waiter)
                raise
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    def _withdraw(self, caller: str, waiter: Waiter) -> None:
        if waiter.done() and not waiter.cancelled():  # the turn came at the same moment
            self._pass_on()
        elif waiter in self._waiting.get(caller, ()):
            self._waiting[caller].remove(waiter)
            if not self._waiting[caller]:
                del self._waiting[caller]

    def _pass_on(self) -> None:
        """Gives the turn to the next caller's first, and sends that caller to the end of the round."""
        self._busy = False
        if not self._waiting:
            return
        caller = next(iter(self._waiting))
        queue = self._waiting.pop(caller)
        waiter = queue.popleft()
        if queue:
            self._waiting[caller] = queue
        self._busy = True
        waiter.set_result(None)

    def _position(self, wanted: Waiter) -> int:
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
