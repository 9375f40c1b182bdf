"""POST /v1/responses, and the stored responses: GET and DELETE /v1/responses/{id}."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.errors import JobActive, UnknownJob
from backend.common.types import JsonObject
from backend.jobs.generate_request import parse_request
from backend.manager import ModelManager
from backend.server.dependencies import Caller, IdempotencyKey, Manager, OpenStreams, events_or
from backend.server.json_response import sendable
from backend.server.v1.errors import refusals
from backend.server.v1.message_reader import MessageReader, make_reader, read_message
from backend.server.v1.request_translation import require_model_task, run_and_respond, run_keys, sampling_options
from backend.server.v1.response_shapes import opens_thoughts
from backend.server.v1.responses.bodies import ECHOED, ResponseBody, function_tools, response_format, tool_choice
from backend.server.v1.responses.items import messages_of, output_items
from backend.server.v1.responses.objects import PREFIX, ItemsResponse, stored_response
from backend.server.v1.text_format import format_options
from backend.tasks.options.tools import Tool

router = APIRouter(prefix="/v1", tags=["OpenAI"])
NAMES = {"options.max_tokens": "max_output_tokens", "options.reasoning_effort": "reasoning.effort"}


@router.post("/responses", response_class=Response, responses={200: events_or(), **refusals(409, 429, 502)})
async def create_response(
    body: ResponseBody, request: Request, manager: Manager, caller: Caller, streams: OpenStreams, key: IdempotencyKey
) -> Response:
    """Answer in OpenAI's Responses shape. Closing the request cancels the job."""
    require_model_task(manager, body, "text")
    tools = function_tools(body)
    choice, form = tool_choice(body, tools), response_format(body)
    offered = tools if choice != "none" else []
    messages = [*await _earlier_messages(manager, body.previous_response_id), *messages_of(body.input)]
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    asked = body.model_dump(include=set(ECHOED), exclude_unset=True, exclude_none=True)
    asked = {"temperature": body.temperature, "top_p": body.top_p, **asked}
    reading = {
        "is_single": not body.parallel_tool_calls,
        "must_call": bool(offered) and choice != "auto",
        "is_constrained": form is not None,
    }
    job = {
        **run_keys(body),
        "task": "text",
        "messages": messages,
        "options": {**_options(body), **format_options(offered, choice, form)},
        "stream": body.stream,
        "metadata": {"response": {"asked": asked, "reading": reading}},
    }
    names = NAMES | ({"options.response_format": "tools" if offered else "text.format"})
    reader = partial(make_reader, offered, **reading)
    return await run_and_respond(
        request,
        manager,
        streams,
        caller,
        body,
        [parse_request(job)],
        lambda choices: ItemsResponse(choices, asked, reader),
        names,
        key,
    )


def _options(body: ResponseBody) -> JsonObject:
    options = sampling_options(body)
    if body.max_output_tokens:
        options["max_tokens"] = body.max_output_tokens
    if body.chat_template_kwargs is not None:
        options["chat_template_kwargs"] = body.chat_template_kwargs
    if body.reasoning and body.reasoning.effort:
        options["reasoning_effort"] = body.reasoning.effort
    return options


@router.get("/responses/{response_id}", responses=refusals())
async def read_response(response_id: str, manager: Manager) -> JsonObject:
    """Return a stored response."""
    view, facts = await _stored(manager, response_id)
    return sendable(stored_response(view, facts["asked"], await _reader_of(manager, view, facts)))


@router.delete("/responses/{response_id}", responses=refusals(409))
async def delete_response(response_id: str, manager: Manager) -> JsonObject:
    """Delete a stored response and its job."""
    view, _ = await _stored(manager, response_id)
    await manager.registry.delete(view["id"])
    return {"id": response_id, "object": "response", "deleted": True}


async def _earlier_messages(manager: ModelManager, response_id: str | None) -> list[JsonObject]:
    """Return the messages of an earlier response without its instructions, with its answer. Raises UnknownJob."""
    if response_id is None:
        return []
    view, facts = await _stored(manager, response_id, "previous_response_id")
    if view["status"] != "done":
        raise JobActive(
            f"The response {response_id} is not complete: {view['status']}.", "Continue a complete response."
        )
    messages: list[JsonObject] = list(view["request"]["messages"])
    if facts["asked"].get("instructions"):
        messages.pop(0)
    is_cut = view["output"]["finish_reason"] == "length"
    read = read_message(await _reader_of(manager, view, facts), view["output"]["text"] or "", is_cut)
    calls = [item for item in output_items(view["id"], read, is_cut) if item["type"] == "function_call"]
    text = [{"role": "assistant", "content": read.content}] if read.content or not calls else []
    return [*messages, *messages_of([*text, *calls])]


async def _stored(manager: ModelManager, response_id: str, key: str = "response_id") -> tuple[JsonObject, JsonObject]:
    """Return the job of a stored response, and what its metadata say. Raises UnknownJob."""
    view: JsonObject | None = None
    if response_id.startswith(PREFIX):
        try:
            view = await manager.registry.view(response_id.removeprefix(PREFIX))
        except UnknownJob:
            view = None
    facts = ((view or {}).get("request", {}).get("metadata") or {}).get("response")
    if view is None or not facts or facts["asked"].get("store") is False:
        raise UnknownJob(
            f"There is no stored response {response_id[:100]!r}.",
            "It was deleted, has expired, or was made with store: false.",
            fields=[key],
        )
    return view, facts


async def _reader_of(manager: ModelManager, view: JsonObject, facts: JsonObject) -> MessageReader:
    """Return the reader of the text of an earlier job."""
    tools = view["request"]["options"].get("tools") or []
    reader = make_reader([Tool.model_validate(tool) for tool in tools], **facts["reading"])
    events = await manager.follow(view["id"]) if view["status"] == "done" else None
    if events is not None and any([opens_thoughts(event) async for event in events]):
        reader.open_thoughts()
    return reader
