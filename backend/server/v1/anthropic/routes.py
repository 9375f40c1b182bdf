"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.types import JsonObject
from backend.jobs.generate_request import GenerateRequest, parse_request
from backend.server.dependencies import Caller, IdempotencyKey, Manager, OpenStreams, events_or
from backend.server.json_response import JsonResponse
from backend.server.v1.anthropic.bodies import (
    CountBody,
    MessagesBody,
    function_tools,
    messages_of,
    response_format,
    tool_choice,
)
from backend.server.v1.anthropic.objects import MessageResponse
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.message_reader import make_reader
from backend.server.v1.request_translation import (
    require_model_task,
    run_and_respond,
    run_keys,
    sampling_options,
    wait_for_end,
)
from backend.server.v1.text_format import format_options

router = APIRouter(prefix="/v1", tags=["Anthropic"])
NAMES = {"options.stop": "stop_sequences", "options.reasoning_effort": "thinking"}


@router.post("/messages", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def create_message(
    body: MessagesBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams, key: IdempotencyKey
) -> Response:
    """Answer in the shape of Anthropic's Messages API. Closing the request cancels the job."""
    require_model_task(manager, body, "text")
    tools = function_tools(body)
    choice, form = tool_choice(body, tools), response_format(body)
    offered = tools if choice != "none" else []
    options = _options(body)
    if body.stop_sequences:
        options["stop"] = body.stop_sequences
    reader = partial(
        make_reader,
        offered,
        is_single=bool(body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        must_call=bool(offered) and choice != "auto",
        is_constrained=form is not None,
    )
    names = NAMES | {"options.response_format": "tools" if offered else "output_config.format"}
    return await run_and_respond(
        request,
        manager,
        streams,
        caller,
        body,
        [_request(body, {**options, **format_options(offered, choice, form)})],
        lambda choices: MessageResponse(choices, reader),
        names,
        key,
    )


@router.post("/messages/count_tokens", response_class=Response, responses=refusals(409, 429, 502))
async def count_tokens(body: CountBody, request: Request, manager: Manager, caller: Caller) -> Response:
    """Return the tokens of a request, counted by the model: a job that reads the prompt and writes one token."""
    require_model_task(manager, body, "text")
    tools = [] if body.tool_choice and body.tool_choice.type == "none" else function_tools(body)
    options = {**_options(body), "max_tokens": 1, **format_options(tools, "auto", None)}
    choices = await Choices.accept(manager, [_request(body, options)], caller, NAMES)
    if early_response := await wait_for_end(choices, request):
        return early_response
    receipt = choices.jobs[0].receipt
    tokens = receipt.counts.get("prompt_tokens", 0) if receipt else 0
    return JsonResponse({"input_tokens": tokens}, headers=choices.headers())


def _request(body: CountBody, options: JsonObject) -> GenerateRequest:
    messages = messages_of(body)
    request = {"task": "text", "messages": messages, "options": options, "stream": body.stream}
    return parse_request({**run_keys(body), **request})


def _options(body: CountBody) -> JsonObject:
    """Return the options that the body sets.

    Thinking is a permission: a template without such a variable ignores it. Only a model that always thinks refuses to
    be without.
    """
    options = sampling_options(body)
    effort = body.output_config.effort if body.output_config else None
    values: JsonObject = {"reasoning_effort": effort} if effort else {}
    if effort or (body.thinking and body.thinking.type == "enabled"):
        values |= {"enable_thinking": True, "thinking": True}
    values |= body.chat_template_kwargs or {}
    if values:
        options["chat_template_kwargs"] = values
    if body.thinking and body.thinking.type == "disabled":
        options["reasoning_effort"] = "none"
    return options
