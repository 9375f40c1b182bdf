"""The message object of Anthropic's API, complete and as a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator

from backend.common.errors import TouchstoneError
from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob
from backend.server.sse import named_event
from backend.server.v1.choices import Choices
from backend.server.v1.errors import MESSAGES, error_body
from backend.server.v1.message_events import complete_parts, stream_parts
from backend.server.v1.message_reader import MessageReader, Part
from backend.server.v1.response_shapes import finish_reason, receipt_of
from backend.server.v1.usage import usage_of


class MessageResponse:
    """The response of one job: complete, or as events."""

    def __init__(self, choices: Choices, make_reader: Callable[[], MessageReader]) -> None:
        self._choices = choices
        self._job: LiveJob = choices.jobs[0]
        self._make_reader = make_reader

    def full(self) -> JsonObject:
        """Return the complete message. The job must be done."""
        read = complete_parts(self._job, self._make_reader())
        ending = {"stop_reason": stop_reason(self._job, read), "stop_sequence": None, "usage": self._usage()}
        return {**self._head, "content": _blocks(self._job.id, read), **ending, "receipt": receipt_of(self._job)}

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the events. After a failure the last one is `error`."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        opening = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=opening)
        writer = _BlockWriter(self._job.id)
        try:
            async for part in stream_parts(self._choices, self._make_reader()):
                for event in writer.add(part):
                    yield event
        except TouchstoneError as error:
            yield named_event("error", error_body(error.problem(), error.extra.get("fields"), MESSAGES))
            return
        for event in writer.close():
            yield event
        ending = {"stop_reason": stop_reason(self._job, writer.read), "stop_sequence": None}
        yield _event("message_delta", delta=ending, usage=self._usage(), receipt=receipt_of(self._job))
        yield _event("message_stop")

    @property
    def _head(self) -> JsonObject:
        return {"id": f"msg_{self._job.id}", "type": "message", "role": "assistant", "model": self._job.model}

    def _usage(self) -> JsonObject:
        counts = usage_of(self._choices.jobs, 1)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
        }


def stop_reason(job: LiveJob, read: Part) -> str:
    """Return why the message ends."""
    if read.calls and not read.is_cut:
        return "tool_use"
    return "max_tokens" if finish_reason(job) == "length" else "end_turn"


def _blocks(job_id: str, read: Part) -> list[JsonObject]:
    thoughts = [{"type": "thinking", "thinking": read.thoughts, "signature": ""}] if read.thoughts else []
    text = [{"type": "text", "text": read.content}] if read.content else []
    calls = [
        {"type": "tool_use", "id": f"toolu_{job_id}_{number}", "name": call.name, "input": json.loads(call.arguments)}
        for number, call in enumerate(read.calls)
    ]
    return [*thoughts, *text, *calls]


def _event(kind: str, **fields: object) -> str:
    return named_event(kind, {"type": kind, **fields})


class _BlockWriter:
    """Writes the events of one message: a block for the thoughts, one for the text, and one for each call."""

    def __init__(self, job_id: str) -> None:
        self.read = Part()  # everything so far
        self._job_id = job_id
        self._index = -1
        self._open = ""  # the type of the open block

    def add(self, part: Part) -> Iterator[str]:
        """Yield the events of the next part of the message."""
        if part.thoughts:
            yield from self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta("thinking_delta", "thinking", part.thoughts)
        if part.content:
            yield from self._open_block("text", {"type": "text", "text": ""})
            yield self._delta("text_delta", "text", part.content)
        read = self.read
        self.read = Part(
            read.thoughts + part.thoughts,
            read.content + part.content,
            [*read.calls, *part.calls],
            read.is_cut or part.is_cut,
        )

    def close(self) -> Iterator[str]:
        """Yield the events that end the open block, and those of the calls."""
        for number, call in enumerate(self.read.calls):
            block = {"type": "tool_use", "id": f"toolu_{self._job_id}_{number}", "name": call.name, "input": {}}
            yield from self._open_block(f"tool {number}", block)
            yield self._delta("input_json_delta", "partial_json", call.arguments)
        yield from self._close_block()

    def _open_block(self, kind: str, block: JsonObject) -> Iterator[str]:
        if self._open != kind:
            yield from self._close_block()
            self._open = kind
            self._index += 1
            yield _event("content_block_start", index=self._index, content_block=block)

    def _close_block(self) -> Iterator[str]:
        if self._open:
            yield _event("content_block_stop", index=self._index)
            self._open = ""

    def _delta(self, kind: str, key: str, text: str) -> str:
        return _event("content_block_delta", index=self._index, delta={"type": kind, key: text})
