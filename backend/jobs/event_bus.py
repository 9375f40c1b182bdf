"""The event bus: one stream for the page with all job events but tokens, and changes of devices and runtimes.

Ids start at the time of the server's start in milliseconds, so ids from before a restart are lower.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from backend.common.types import Event, JsonObject

KEPT = 2000  # events


class EventBus:
    """Keeps the last events and wakes the followers."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._first = int(clock() * 1000)
        self._ids = itertools.count(self._first)
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._followers: set[asyncio.Event] = set()
        self._closed = False

    def publish(self, event: str, data: JsonObject) -> None:
        """Add an event. Tokens are left out."""
        if event == "token":
            return
        self._events.append(Event(next(self._ids), event, data))
        self._wake()

    def close(self) -> None:
        """End all followers."""
        self._closed = True
        self._wake()

    async def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Yield the kept events with ids above `after`, then new ones. Default: only new ones.

        An id above all known ids is from an earlier start, after which the clock was set back: all kept events follow.
        """
        woken = asyncio.Event()
        self._followers.add(woken)
        newest = self._events[-1].id if self._events else self._first - 1
        last = newest if after is None else after if after <= newest else 0
        try:
            while True:
                woken.clear()
                for event in [event for event in self._events if event.id > last]:
                    last = event.id
                    yield event
                if self._closed:
                    return
                await woken.wait()
        finally:
            self._followers.discard(woken)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.set()
