"""POST /v1/chat/completions: a conversation goes on."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.jobs.live_job import LiveJob
from backend.server.dependencies import Caller, Manager, OpenStreams, events_or
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.message_translation import plain_messages
from backend.server.v1.request_models import ChatBody, NamedTool
from backend.server.v1.request_translation import answered, made_for, requests_of, sampling_of
from backend.server.v1.response_shapes import Answer, finish_reason, tokens_of
from backend.server.v1.tool_calls import Call, Calls, calls_schema

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/chat/completions", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def chat(body: ChatBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams) -> Response:
    """Continues a conversation, in OpenAI's shapes. Each choice is a job, and leaving cancels it."""
    made_for(manager, body, "text")
    requests = requests_of(body, [{"messages": plain_messages(body.messages)}], _options(body))
    return await answered(request, manager, streams, caller, body, requests, lambda jobs: ChatAnswer(jobs, body))


def _options(body: ChatBody) -> dict[str, Any]:
    options = sampling_of(body)
    if body.max_completion_tokens:
        options["max_tokens"] = body.max_completion_tokens
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    if body.response_format:
        options["response_format"] = body.response_format.model_dump(by_alias=True)
    if body.tools and body.offers_tools:
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
        if body.tool_choice != "auto":
            named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
            callable_ = [tool for tool in body.tools if named in (None, tool.function.name)]
            schema = {"name": "call", "schema": calls_schema(callable_)}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


class ChatAnswer(Answer):
    """A chat completion."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, choices: Choices, body: ChatBody) -> None:
        super().__init__(choices, body.n, body.with_usage)
        self._body = body
        self._calls = [self._reader() for _ in choices.jobs]

    def opening(self, index: int) -> dict[str, Any]:
        """The role."""
        return {"delta": {"role": "assistant", "content": ""}}

    def text(self, index: int, token: dict[str, Any]) -> dict[str, Any] | None:
        """The text as it comes, held back where it may be a call."""
        calls = self._calls[index]
        text = calls.feed(token["text"]) if calls else token["text"]
        listed = token.get("logprobs")
        return {"delta": {"content": text} if text else {}, "logprobs": _logprobs(listed)} if text or listed else None

    def closing(self, index: int, job: LiveJob) -> list[dict[str, Any]]:
        """The calls, if any, and the reason of the end."""
        reader = self._calls[index]
        text, calls = reader.end() if reader else ("", [])
        shown = [{"delta": {"content": text}}] if text else []
        deltas = [
            {"delta": {"tool_calls": [{"index": number, **call}]}} for number, call in enumerate(_shapes(job, calls))
        ]
        return [*shown, *deltas, {"delta": {}, "finish_reason": "tool_calls" if calls else finish_reason(job)}]

    def choice(self, index: int, job: LiveJob) -> dict[str, Any]:
        """The message, whole."""
        tokens = tokens_of(job)
        reader, text, calls = self._reader(), "".join(token["text"] for token in tokens), list[Call]()
        if reader:
            shown = reader.feed(text)
            rest, calls = reader.end()
            text = shown + rest
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = _shapes(job, calls)
        listed = [entry for token in tokens for entry in token.get("logprobs", ())] if self._body.logprobs else None
        reason = "tool_calls" if calls else finish_reason(job)
        return {"index": index, "message": message, "logprobs": _logprobs(listed), "finish_reason": reason}

    def _reader(self) -> Calls | None:
        if not (self._body.tools and self._body.offers_tools):
            return None
        return Calls((tool.function.name for tool in self._body.tools), not self._body.parallel_tool_calls)


def _logprobs(listed: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if listed is None else {"content": listed, "refusal": None}


def _shapes(job: LiveJob, calls: list[Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{job.id}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]
