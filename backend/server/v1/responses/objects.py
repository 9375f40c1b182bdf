"""The response object, complete and as a stream of typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

from backend.common.errors import TouchstoneError
from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob
from backend.server.sse import named_event
from backend.server.v1.choices import Choices
from backend.server.v1.errors import error_body
from backend.server.v1.message_events import complete_parts, stream_parts
from backend.server.v1.message_reader import MessageReader, Part, read_message
from backend.server.v1.response_shapes import finish_reason, receipt_of
from backend.server.v1.responses.items import call_item, message_item, output_items, reasoning_item, text_part
from backend.server.v1.usage import usage_of

PREFIX = "resp_"
_DEFAULTS: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}


def response_object(
    job_id: str, created_at: float, model: str | None, status: str, asked: JsonObject, **more: Any
) -> JsonObject:
    """Return a response object. `asked` are the keys of the request that it repeats."""
    return {
        "id": f"{PREFIX}{job_id}",
        "object": "response",
        "created_at": int(created_at),
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "truncation": "disabled",
        "usage": None,
        **_DEFAULTS,
        **asked,
        **more,
    }


def usage_view(usage: JsonObject) -> JsonObject:
    """Return the token counts with the names of this API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def stored_response(view: JsonObject, asked: JsonObject, reader: MessageReader) -> JsonObject:
    """Return the response of a job of the history. `view` is the Job."""
    created = datetime.fromisoformat(view["created_at"]).timestamp()
    is_cut = view["output"]["finish_reason"] == "length"
    states = {"done": "incomplete" if is_cut else "completed", "error": "failed", "interrupted": "failed"}
    status = states.get(view["status"], view["status"] if view["status"] == "cancelled" else "in_progress")
    more: JsonObject = {"receipt": view["receipt"]}
    if status in ("completed", "incomplete"):
        read = read_message(reader, view["output"]["text"] or "", is_cut)
        counts = (view["receipt"] or {}).get("counts", {})
        prompt, tokens = counts.get("prompt_tokens", 0), counts.get("tokens", 0)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        usage["prompt_tokens_details"] = {"cached_tokens": counts.get("cached_tokens", 0)}
        more |= {"output": output_items(view["id"], read, is_cut), "usage": usage_view(usage)}
        more["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
    if view["error"]:
        more["error"] = {"code": "server_error", "message": view["error"]["detail"]}
    return response_object(view["id"], created, view["model"], status, asked, **more)


class ItemsResponse:
    """The response of one job: complete, or as typed events."""

    def __init__(self, choices: Choices, asked: JsonObject, make_reader: Callable[[], MessageReader]) -> None:
        self._choices = choices
        self._job: LiveJob = choices.jobs[0]
        self._asked = asked
        self._make_reader = make_reader
        self._created_at = time.time()

    def full(self) -> JsonObject:
        """Return the complete response. The job must be done."""
        return self._complete(complete_parts(self._job, self._make_reader()))

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the typed events. After a failure the last ones are `error` and `response.failed`."""
        events = _EventWriter(self._job.id)
        for kind in ("response.created", "response.in_progress"):
            yield events.write(kind, response=self._object("in_progress"))
        try:
            async for part in stream_parts(self._choices, self._make_reader()):
                for event in events.add(part):
                    yield event
        except TouchstoneError as error:
            body = error_body(error.problem(), error.extra.get("fields"), "/v1/responses")["error"]
            yield events.write("error", **{key: body[key] for key in ("code", "message", "param")})
            failed = {"code": "server_error", "message": body["message"]}
            yield events.write("response.failed", response=self._object("failed", error=failed))
            return
        for event in events.close(is_cut=finish_reason(self._job) == "length"):
            yield event
        done = self._complete(events.read)
        yield events.write(f"response.{done['status']}", response=done)

    def _complete(self, read: Part) -> JsonObject:
        is_cut = finish_reason(self._job) == "length" and not (read.calls and not read.is_cut)
        return self._object(
            "incomplete" if is_cut else "completed",
            output=output_items(self._job.id, read, is_cut),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage=usage_view(usage_of(self._choices.jobs, 1)),
            receipt=receipt_of(self._job),
        )

    def _object(self, status: str, **more: Any) -> JsonObject:
        return response_object(self._job.id, self._created_at, self._job.model, status, self._asked, **more)


class _EventWriter:
    """Writes the events of one message: an item for the thoughts, one for the text, and one for each call."""

    def __init__(self, job_id: str) -> None:
        self.read = Part()  # everything so far
        self._job_id = job_id
        self._number = -1
        self._index = -1  # of the open item
        self._open = ""  # the kind of the open item

    def write(self, kind: str, **fields: Any) -> str:
        """Return an event with the next number."""
        self._number += 1
        return named_event(kind, {"type": kind, "sequence_number": self._number, **fields})

    def add(self, part: Part) -> Iterator[str]:
        """Yield the events of the next part of the message."""
        if part.thoughts:
            yield from self._open_item("reasoning", reasoning_item(self._job_id, None))
            self.read.thoughts += part.thoughts
            yield self._delta("response.reasoning_text.delta", part.thoughts)
        if part.content:
            yield from self._open_item("message", message_item(self._job_id, None))
            self.read.content += part.content
            yield self._delta("response.output_text.delta", part.content, logprobs=[])
        self.read.calls += part.calls
        self.read.is_cut = self.read.is_cut or part.is_cut

    def close(self, is_cut: bool) -> Iterator[str]:
        """Yield the events that end the text, and those of the calls."""
        if not self.read.content and not self.read.calls:
            yield from self._open_item("message", message_item(self._job_id, None))
        yield from self._close_item(is_cut)
        for number, call in enumerate(self.read.calls):
            self._index += 1
            made, done = (call_item(self._job_id, number, call.name, text) for text in (None, call.arguments))
            place = {"item_id": done["id"], "output_index": self._index}
            kind = "response.function_call_arguments"
            yield self.write("response.output_item.added", output_index=self._index, item=made)
            yield self.write(f"{kind}.delta", **place, delta=call.arguments)
            yield self.write(f"{kind}.done", **place, name=call.name, arguments=call.arguments)
            yield self.write("response.output_item.done", output_index=self._index, item=done)

    def _open_item(self, kind: str, item: JsonObject) -> Iterator[str]:
        if self._open == kind:
            return
        yield from self._close_item()
        self._open = kind
        self._index += 1
        yield self.write("response.output_item.added", output_index=self._index, item=item)
        part = text_part("") if kind == "message" else {"type": "reasoning_text", "text": ""}
        yield self.write("response.content_part.added", **self._place(), part=part)

    def _close_item(self, is_cut: bool = False) -> Iterator[str]:
        if not self._open:
            return
        if self._open == "message":
            item = message_item(self._job_id, self.read.content, "incomplete" if is_cut else "completed")
            yield self.write("response.output_text.done", **self._place(), text=self.read.content, logprobs=[])
        else:
            item = reasoning_item(self._job_id, self.read.thoughts)
            yield self.write("response.reasoning_text.done", **self._place(), text=self.read.thoughts)
        yield self.write("response.content_part.done", **self._place(), part=item["content"][0])
        yield self.write("response.output_item.done", output_index=self._index, item=item)
        self._open = ""

    def _delta(self, kind: str, text: str, **more: Any) -> str:
        return self.write(kind, **self._place(), delta=text, **more)

    def _place(self) -> JsonObject:
        item_id = f"{'msg' if self._open == 'message' else 'rs'}_{self._job_id}"
        return {"item_id": item_id, "output_index": self._index, "content_index": 0}
