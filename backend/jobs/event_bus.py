"""One stream of what happens, for the page: every job's events but tokens, each change of a device or runtime.

Ids have a sequence of their own that begins at the moment of the start, so an id from before a restart is an old one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from backend.common.types import Event

KEPT = 2000


class EventBus:
    """Keeps the last events and wakes those who follow."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._first = int(clock() * 1000)
        self._ids = itertools.count(self._first)
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._followers: set[asyncio.Event] = set()
        self._closed = False

    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Adds an event; tokens are left out."""
        if event == "token":
            return
        self._events.append(Event(next(self._ids), event, data))
        self._wake()

    def close(self) -> None:
        """Ends all followers."""
        self._closed = True
        self._wake()

    async def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events above `after` that are still kept, and those to come; without `after` only those to come.

        An id beyond all that were given is one of an earlier start, after which the clock was set back.
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
