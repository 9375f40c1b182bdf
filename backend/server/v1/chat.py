"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob
from backend.server.dependencies import Caller, Manager, OpenStreams, events_or
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.message_translation import plain_messages
from backend.server.v1.request_models import ChatBody, NamedTool
from backend.server.v1.request_translation import build_requests, require_model_task, run_and_respond, sampling_options
from backend.server.v1.response_shapes import CompletionResponse, finish_reason, tokens_of
from backend.server.v1.tool_calls import Call, ToolCallParser, calls_schema
from backend.tasks.options.tools import REQUIRED_CALL

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/chat/completions", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def chat(body: ChatBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams) -> Response:
    """Continue a conversation, in OpenAI's shapes. Each choice is a job; closing the request cancels it."""
    require_model_task(manager, body, "text")
    requests = build_requests(body, [{"messages": plain_messages(body.messages)}], _options(body))
    return await run_and_respond(
        request, manager, streams, caller, body, requests, lambda jobs: ChatResponse(jobs, body)
    )


def _options(body: ChatBody) -> JsonObject:
    options = sampling_options(body)
    if body.max_completion_tokens:
        options["max_tokens"] = body.max_completion_tokens
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    if body.response_format:
        options["response_format"] = body.response_format.model_dump(by_alias=True)
    if body.tools and body.offers_tools:
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
        if body.tool_choice != "auto":
            name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
            callable_ = [tool for tool in body.tools if name in (None, tool.function.name)]
            schema = {"name": REQUIRED_CALL, "schema": calls_schema(callable_)}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


class ChatResponse(CompletionResponse):
    """The response of a chat completion."""

    full_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, choices: Choices, body: ChatBody) -> None:
        super().__init__(choices, body.n, body.with_usage)
        self._body = body
        self._parsers = [self._make_parser() for _ in choices.jobs]

    def opening(self, index: int) -> JsonObject:
        """Return the delta with the role."""
        return {"delta": {"role": "assistant", "content": ""}}

    def text(self, index: int, token: JsonObject) -> JsonObject | None:
        """Return the delta for a token. Text that may be a tool call is held back."""
        parser = self._parsers[index]
        text = parser.feed(token["text"]) if parser else token["text"]
        entries = token.get("logprobs")
        return {"delta": {"content": text} if text else {}, "logprobs": _logprobs(entries)} if text or entries else None

    def closing(self, index: int, job: LiveJob) -> list[JsonObject]:
        """Return the deltas of the tool calls, if any, and the finish reason."""
        parser = self._parsers[index]
        text, calls = parser.end() if parser else ("", [])
        shown = [{"delta": {"content": text}}] if text else []
        deltas = [
            {"delta": {"tool_calls": [{"index": number, **call}]}}
            for number, call in enumerate(_call_views(job, calls))
        ]
        return [*shown, *deltas, {"delta": {}, "finish_reason": "tool_calls" if calls else finish_reason(job)}]

    def choice(self, index: int, job: LiveJob) -> JsonObject:
        """Return the complete message."""
        tokens = tokens_of(job)
        parser, text, calls = self._make_parser(), "".join(token["text"] for token in tokens), list[Call]()
        if parser:
            shown = parser.feed(text)
            rest, calls = parser.end()
            text = shown + rest
        message: JsonObject = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = _call_views(job, calls)
        entries = [entry for token in tokens for entry in token.get("logprobs", ())] if self._body.logprobs else None
        reason = "tool_calls" if calls else finish_reason(job)
        return {"index": index, "message": message, "logprobs": _logprobs(entries), "finish_reason": reason}

    def _make_parser(self) -> ToolCallParser | None:
        if not (self._body.tools and self._body.offers_tools):
            return None
        return ToolCallParser((tool.function.name for tool in self._body.tools), not self._body.parallel_tool_calls)


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
