"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob
from backend.server.dependencies import Caller, IdempotencyKey, Manager, OpenStreams, events_or
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.message_reader import MessageReader, Part, make_reader, read_message
from backend.server.v1.message_translation import plain_messages
from backend.server.v1.request_models import ChatBody
from backend.server.v1.request_translation import build_requests, require_model_task, run_and_respond, sampling_options
from backend.server.v1.response_shapes import CompletionResponse, begins_with_thoughts, finish_reason, tokens_of
from backend.server.v1.text_format import format_options
from backend.server.v1.tool_calls import Call

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/chat/completions", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def chat(
    body: ChatBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams, key: IdempotencyKey
) -> Response:
    """Continue a conversation, in OpenAI's shapes. Each choice is a job; closing the request cancels it."""
    require_model_task(manager, body, "text")
    requests = build_requests(body, [{"messages": plain_messages(body.messages)}], _options(body))
    return await run_and_respond(
        request, manager, streams, caller, body, requests, lambda jobs: ChatResponse(jobs, body), _names(body), key
    )


def _options(body: ChatBody) -> JsonObject:
    options = sampling_options(body)
    if body.max_completion_tokens:
        options["max_tokens"] = body.max_completion_tokens
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    for name in ("chat_template_kwargs", "reasoning_effort"):
        if (value := getattr(body, name)) is not None:
            options[name] = value
    return options | format_options(body.tools if body.offers_tools else None, body.tool_choice, body.response_format)


def _names(body: ChatBody) -> dict[str, str]:
    """Return the caller's keys by the job's keys where they differ."""
    names = {"options.max_tokens": "max_completion_tokens"} if body.max_completion_tokens else {}
    if body.must_call:
        names["options.response_format"] = "tools"
    if body.logprobs:
        names["options.logprobs"] = "top_logprobs" if body.top_logprobs else "logprobs"
    return names


class ChatResponse(CompletionResponse):
    """The response of a chat completion."""

    full_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, choices: Choices, body: ChatBody) -> None:
        super().__init__(choices, body.n, body.with_usage)
        self._body = body
        self._readers = [self._make_reader() for _ in choices.jobs]

    def opening(self, index: int) -> JsonObject:
        """Return the delta with the role."""
        return {"delta": {"role": "assistant", "content": ""}}

    def note_thoughts(self, index: int) -> None:
        """Let the text of a choice begin within the model's thoughts."""
        self._readers[index].open_thoughts()

    def text(self, index: int, token: JsonObject) -> JsonObject | None:
        """Return the delta for a token. Text that may be a tool call or a mark is held back."""
        delta = _delta(self._readers[index].feed(token["text"]))
        entries = token.get("logprobs")
        return {"delta": delta, "logprobs": _logprobs(entries)} if delta or entries else None

    def closing(self, index: int, job: LiveJob) -> list[JsonObject]:
        """Return the deltas of the tool calls, if any, and the finish reason."""
        rest = self._readers[index].end(finish_reason(job) == "length")
        shown = [{"delta": delta}] if (delta := _delta(rest)) else []
        deltas = [
            {"delta": {"tool_calls": [{"index": number, **call}]}}
            for number, call in enumerate(_call_views(job, rest.calls))
        ]
        return [*shown, *deltas, {"delta": {}, "finish_reason": _finish(job, rest)}]

    def choice(self, index: int, job: LiveJob) -> JsonObject:
        """Return the complete message."""
        tokens = tokens_of(job)
        reader = self._make_reader()
        if begins_with_thoughts(job):
            reader.open_thoughts()
        read = read_message(reader, "".join(token["text"] for token in tokens), finish_reason(job) == "length")
        has_no_text = not read.content and (read.calls or read.is_cut)
        message: JsonObject = {"role": "assistant", "content": None if has_no_text else read.content, "refusal": None}
        if read.thoughts:
            message["reasoning_content"] = read.thoughts
        if read.calls:
            message["tool_calls"] = _call_views(job, read.calls)
        entries = [entry for token in tokens for entry in token.get("logprobs", ())] if self._body.logprobs else None
        return {"index": index, "message": message, "logprobs": _logprobs(entries), "finish_reason": _finish(job, read)}

    def _make_reader(self) -> MessageReader:
        return make_reader(
            self._body.tools if self._body.offers_tools else None,
            is_single=not self._body.parallel_tool_calls,
            must_call=self._body.must_call,
            is_constrained=self._body.response_format is not None,
        )


def _delta(part: Part) -> JsonObject:
    thoughts = {"reasoning_content": part.thoughts} if part.thoughts else {}
    return thoughts | ({"content": part.content} if part.content else {})


def _finish(job: LiveJob, read: Part) -> str:
    return "tool_calls" if read.calls and not read.is_cut else finish_reason(job)


def _logprobs(entries: list[JsonObject] | None) -> JsonObject | None:
    return None if entries is None else {"content": entries, "refusal": None}


def _call_views(job: LiveJob, calls: list[Call]) -> list[JsonObject]:
    return [
        {
            "id": f"call_{job.id}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]
