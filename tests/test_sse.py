"""The streams of events as such: who gets a place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backend.api.sse import EventStream, Streams
from backend.errors import QueueFull
from backend.types import Event


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
