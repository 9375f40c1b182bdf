"""The parts of the message that one job writes, while it runs and when it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator

from backend.common.types import TERMINAL
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import interrupted
from backend.server.v1.choices import Choices
from backend.server.v1.message_reader import MessageReader, Part, read_message
from backend.server.v1.response_shapes import (
    begins_with_thoughts,
    fallback_error,
    finish_reason,
    merged,
    opens_thoughts,
    tokens_of,
)


async def stream_parts(choices: Choices, reader: MessageReader) -> AsyncIterator[Part]:
    """Yield the parts of the message as the job writes them; the last one has the calls.

    Raises the error of the job, also for a fallback after the first token; the job is then cancelled.
    """
    (job,) = choices.jobs
    has_started = False
    async for _, event in merged(choices.jobs):
        if opens_thoughts(event):
            reader.open_thoughts()
        elif event.event == "token":
            has_started = True
            yield reader.feed(event.data["text"])
        elif event.event == "done":
            yield reader.end(finish_reason(job) == "length")
        elif event.event in TERMINAL or (event.event == "fallback" and has_started):
            choices.cancel()
            raise fallback_error(event) or choices.failure_of(job) or interrupted()


def complete_parts(job: LiveJob, reader: MessageReader) -> Part:
    """Return the message of a job that is done."""
    if begins_with_thoughts(job):
        reader.open_thoughts()
    return read_message(reader, "".join(token["text"] for token in tokens_of(job)), finish_reason(job) == "length")
