"""Responses in OpenAI's shapes, complete or in chunks: what chat and completions share.

`receipt` is that of the first choice; with several choices `receipts` lists all. In a stream the chunk with a choice's
`finish_reason` has the receipt of that choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from backend import __version__
from backend.common.errors import TouchstoneError, from_code
from backend.common.types import TERMINAL, Event, JsonObject
from backend.jobs.live_job import LiveJob
from backend.jobs.registry import interrupted
from backend.server.sse import data_line
from backend.server.v1.choices import Choices
from backend.server.v1.errors import error_body
from backend.server.v1.usage import usage_of
from backend.tasks.text.reasoning import PHASE

DONE = "data: [DONE]\n\n"


class CompletionResponse(ABC):
    """The response to one request, from the events of its jobs."""

    full_object: str
    chunk_object: str
    prefix: str

    def __init__(self, choices: Choices, per_prompt: int, with_usage: bool) -> None:
        self._choices = choices
        self._per_prompt = per_prompt
        self._with_usage = with_usage
        job = choices.jobs[0]
        self._common = {"id": f"{self.prefix}-{job.id}", "created": int(time.time()), "model": job.model}

    @abstractmethod
    def opening(self, index: int) -> JsonObject | None:
        """Return the first chunk of a choice, before any text. Optional."""

    @abstractmethod
    def text(self, index: int, token: JsonObject) -> JsonObject | None:
        """Return the chunk for a token event, None if its text is held back."""

    @abstractmethod
    def closing(self, index: int, job: LiveJob) -> list[JsonObject]:
        """Return the last chunks of a choice. The last one has the finish_reason."""

    @abstractmethod
    def note_thoughts(self, index: int) -> None:
        """Note that the text of a choice begins within the model's thoughts."""

    @abstractmethod
    def choice(self, index: int, job: LiveJob) -> JsonObject:
        """Return the complete choice."""

    def full(self) -> JsonObject:
        """Return the complete response. All jobs must be done."""
        jobs = self._choices.jobs
        receipts = [receipt_of(job) for job in jobs]
        return {
            **self._common,
            "system_fingerprint": fingerprint(jobs[0]),
            "object": self.full_object,
            "choices": [self.choice(index, job) for index, job in enumerate(jobs)],
            "usage": usage_of(jobs, self._per_prompt),
            "receipt": receipts[0],
            **({"receipts": receipts} if len(jobs) > 1 else {}),
        }

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the response in chunks. A chunk with an error is the last one, without a [DONE] after it."""
        for index in range(len(self._choices.jobs)):
            if part := self.opening(index):
                yield self._chunk(index, part)
        started: set[int] = set()
        async for index, event in merged(self._choices.jobs):
            if event.event in ("token", "progress"):
                if part := self._take(index, event, started):
                    yield self._chunk(index, part)
            elif event.event == "done":
                job = self._choices.jobs[index]
                *parts, last = self.closing(index, job)
                for part in parts:
                    yield self._chunk(index, part)
                yield self._chunk(index, last, receipt=receipt_of(job))
            elif event.event in TERMINAL or (event.event == "fallback" and index in started):
                self._choices.cancel()
                yield data_line(self._failure(self._choices.jobs[index], event))
                return
        if self._with_usage:
            yield data_line({**self._head, "choices": [], "usage": usage_of(self._choices.jobs, self._per_prompt)})
        yield DONE

    def _take(self, index: int, event: Event, started: set[int]) -> JsonObject | None:
        """Return the chunk for an event of a running job, None if it has none."""
        if opens_thoughts(event):
            self.note_thoughts(index)
        if event.event != "token":
            return None
        started.add(index)  # also while its text is held back
        return self.text(index, event.data)

    def _failure(self, job: LiveJob, event: Event) -> JsonObject:
        """Return the error chunk for the event that ends a stream: a failure, or a fallback after the first token."""
        error = fallback_error(event) or self._choices.failure_of(job) or interrupted()
        return error_body(error.problem(), error.extra.get("fields"))

    @property
    def _head(self) -> JsonObject:
        return {**self._common, "object": self.chunk_object}

    def _chunk(self, index: int, part: JsonObject, **more: Any) -> str:
        choice = {"index": index, "finish_reason": None, "logprobs": None, **part}
        usage = {"usage": None} if self._with_usage else {}
        identity = {"system_fingerprint": fingerprint(self._choices.jobs[index])}
        return data_line({**self._head, **identity, "choices": [choice], **usage, **more})


def fallback_error(event: Event) -> TouchstoneError | None:
    """Return the error of a fallback after the first token, which ends a stream; None for other events."""
    if event.event != "fallback":
        return None
    reason = f"{event.data['from']} failed after the first token: {event.data['reason']}"
    remedy = "Send the request again. A stream that has started is not restarted on another device."
    return from_code(event.data["code"], reason, remedy)


def opens_thoughts(event: Event) -> bool:
    """Return whether an event announces that the text begins within the model's thoughts."""
    return event.event == "progress" and event.data["phase"] == PHASE


def begins_with_thoughts(job: LiveJob) -> bool:
    """Return whether the text of a job begins within the model's thoughts."""
    return any(map(opens_thoughts, job.events))


def fingerprint(job: LiveJob) -> str:
    """Return the `system_fingerprint`: the same for the same version, model, engine and device."""
    receipt = job.receipt
    facts = [__version__, job.model, *((receipt.engine, receipt.used, receipt.versions) if receipt else ())]
    return f"fp_{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]}"


def tokens_of(job: LiveJob) -> list[JsonObject]:
    """Return the token events of a job since its last fallback."""
    tokens: list[JsonObject] = []
    for event in job.events:
        if event.event == "token":
            tokens.append(event.data)
        elif event.event == "fallback":
            tokens.clear()
    return tokens


def finish_reason(job: LiveJob) -> str:
    """Return OpenAI's value for why the text ends."""
    return "length" if job.finish_reason == "length" else "stop"


def receipt_of(job: LiveJob) -> JsonObject | None:
    """Return the receipt as JSON."""
    return asdict(job.receipt) if job.receipt else None


async def merged(jobs: tuple[LiveJob, ...]) -> AsyncIterator[tuple[int, Event]]:
    """Yield the events of all jobs in the order of arrival, each with the index of its job."""
    queue: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()

    async def pump(index: int, job: LiveJob) -> None:
        async for event in job.follow():
            queue.put_nowait((index, event))
        if job.active:  # the server stops; the next start runs the job
            queue.put_nowait((index, Event(0, "interrupted", {})))
        queue.put_nowait((index, None))

    pumps = [asyncio.create_task(pump(index, job)) for index, job in enumerate(jobs)]
    try:
        ended = 0
        while ended < len(jobs):
            index, event = await queue.get()
            ended += event is None
            if event:
                yield index, event
    finally:
        for task in pumps:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*pumps, return_exceptions=True)
