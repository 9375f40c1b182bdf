"""Event streams: limits, heartbeats in pauses, and work shared between subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend.common.errors import QueueFull
from backend.common.types import Event
from backend.server import sse
from backend.server.sse import EventStream, Streams


def test_a_job_that_was_accepted_gets_its_stream_though_the_last_place_went_to_another_meanwhile() -> None:
    async def play() -> bytes:
        streams = Streams(1)
        streams.check()
        streams.open += 1  # while the job was stored

        async def events() -> AsyncIterator[Event]:
            yield Event(1, "queued", {})

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        await EventStream(streams, events())({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        assert streams.open == 1
        return b"".join(message.get("body", b"") for message in sent)

    assert b"event: queued" in asyncio.run(play())
    with pytest.raises(QueueFull):
        Streams(0).check()


async def streamed(events: AsyncIterator[Event], until: Any) -> list[Any]:
    """What was sent up to the message of which `until` is true, or to the end."""
    sent: list[Any] = []
    enough = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if until(message):
            enough.set()

    async def receive() -> Any:
        await enough.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await asyncio.wait_for(EventStream(Streams(1), events)(scope, receive, send), 5)
    return sent


def test_pauses_are_filled_with_comments_and_nothing_comes_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_S", 0.02)

    async def silent() -> AsyncIterator[Event]:
        yield Event(1, "queued", {})
        await asyncio.Event().wait()

    comments: list[bytes] = []

    def third(message: Any) -> bool:
        comments.extend([message["body"]] if message.get("body") == b": \n\n" else [])
        return len(comments) == 3

    sent = asyncio.run(streamed(silent(), third))
    assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
    assert sent[1]["body"] == b": \n\n" and b"event: queued" in sent[2]["body"], "a comment comes at once"
    assert [message["body"] for message in sent[3:]] == [b": \n\n"] * 2

    async def whole() -> AsyncIterator[Event]:
        yield Event(1, "done", {})

    async def ended() -> list[Any]:
        sent = await streamed(whole(), lambda message: False)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() - {asyncio.current_task()} == set(), "the task that fills pauses is gone"
        return sent

    sent = asyncio.run(ended())
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_followers_share_what_was_made_of_an_event_and_little_is_kept() -> None:
    first = Event(1, "token", {"text": "stone"})
    once = sse._encode(first)
    assert sse._encode(first) is once and b'data: {"text":"stone"}' in once
    assert sse._encode(Event(1, "token", {"text": "pebble"})) != once
    for number in range(2 * sse.RECENT):
        sse._encode(Event(number, "token", {}))
    assert len(sse._RECENT) == sse.RECENT
    assert sse._encode(first) == once
