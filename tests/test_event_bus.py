"""The event bus: all events but tokens, device changes, its own ids, and subscriptions that end."""

from __future__ import annotations

import asyncio
import time

from backend.common.types import Event
from backend.jobs.event_bus import KEPT, EventBus


async def taken(feed: EventBus, after: int | None, count: int) -> list[Event]:
    found = []
    async for event in feed.follow(after):
        found.append(event)
        if len(found) == count:
            break
    return found


def test_followers_see_what_comes_and_resume_what_they_missed() -> None:
    async def play() -> None:
        feed = EventBus()
        feed.publish("queued", {"job_id": "1"})
        live = asyncio.create_task(taken(feed, None, 2))
        await asyncio.sleep(0)
        feed.publish("token", {"text": "never shown here"})
        feed.publish("done", {"job_id": "1"})
        feed.publish("device", {"id": "cpu"})
        seen = await live
        assert [event.event for event in seen] == ["done", "device"]
        assert [event.event for event in await taken(feed, seen[0].id, 1)] == ["device"]
        assert [event.event for event in await taken(feed, 0, 3)] == ["queued", "done", "device"]

    asyncio.run(play())


def test_an_id_from_before_a_restart_is_an_old_one() -> None:
    async def play() -> None:
        before = EventBus()
        before.publish("done", {})
        old = (await taken(before, 0, 1))[0].id
        while int(time.time() * 1000) <= old:
            await asyncio.sleep(0.001)
        after = EventBus()
        after.publish("queued", {})
        assert [event.event for event in await taken(after, old, 1)] == ["queued"]

    asyncio.run(play())


def test_what_nobody_reads_does_not_grow() -> None:
    feed = EventBus()
    for number in range(3 * KEPT):
        feed.publish("progress", {"number": number})
    assert len(feed._events) == KEPT


def test_the_end_ends_all_followers() -> None:
    async def play() -> None:
        feed = EventBus()
        followers = [asyncio.create_task(taken(feed, None, 99)) for _ in range(3)]
        await asyncio.sleep(0)
        feed.close()
        assert await asyncio.wait_for(asyncio.gather(*followers), 1) == [[], [], []]

    asyncio.run(play())


def test_after_a_clock_was_set_back_nobody_waits_for_an_id_of_the_future() -> None:
    async def play() -> None:
        before = EventBus(lambda: 2_000_000_000.0)
        before.publish("done", {})
        old = (await taken(before, 0, 1))[0].id
        feed = EventBus(lambda: 1_900_000_000.0)
        feed.publish("queued", {})
        assert [event.event for event in await taken(feed, old, 1)] == ["queued"]
        fresh = EventBus(lambda: 1_900_000_000.0)
        live = asyncio.create_task(taken(fresh, None, 1))
        await asyncio.sleep(0)
        fresh.publish("queued", {})
        assert [event.event for event in await live] == ["queued"]

    asyncio.run(play())
