"""Items of the Responses API: read as messages of a job, and written from the message of a job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backend.common.errors import UnsupportedParameter, Validation
from backend.common.types import JsonObject
from backend.server.v1.message_reader import Part
from backend.server.v1.message_translation import join_parts, parse_arguments

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def messages_of(items: str | Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages of a job. Raises UnsupportedParameter, Validation."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[JsonObject] = []
    thoughts = ""
    for number, item in enumerate(items):
        place = f"input.{number}"
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thoughts = _thoughts(item)
            continue
        message = _message(kind, item, place)
        if message["role"] == "assistant":
            if thoughts:
                message["reasoning_content"] = thoughts
            if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
                previous = messages.pop()  # a text and calls, or several calls, are one message
                calls = [*previous.get("tool_calls", ()), *message["tool_calls"]]
                message = {**previous, "tool_calls": calls}
        thoughts = ""
        messages.append(message)
    return messages


def _message(kind: Any, item: JsonObject, place: str) -> JsonObject:
    if kind == "message":
        if (role := item.get("role")) not in _ROLES:
            raise _invalid(place, "its role should be user, assistant, system or developer")
        return {"role": _ROLES[role], "content": join_parts(item.get("content"), f"{place}.content") or ""}
    if kind == "function_call":
        name, call_id = item.get("name"), item.get("call_id")
        arguments = parse_arguments(item.get("arguments"))
        if not isinstance(name, str) or not isinstance(call_id, str) or arguments is None:
            raise _invalid(place, "a call needs call_id, name, and arguments as the text of a JSON object")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        if not isinstance(call_id := item.get("call_id"), str):
            raise _invalid(place, "a result needs the call_id of its call")
        output = item.get("output")
        content = join_parts(output, f"{place}.output") if isinstance(output, str | list) else json.dumps(output)
        return {"role": "tool", "content": content or "", "tool_call_id": call_id}
    raise UnsupportedParameter(
        f"{place}: items of the type {str(kind)[:50]!r} are not supported.",
        "Send messages, function calls and their results.",
        fields=[place],
    )


def _thoughts(item: JsonObject) -> str:
    parts = item.get("content") or item.get("summary") or []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _invalid(place: str, reason: str) -> Validation:
    return Validation(f"{place}: {reason}.", "Correct the item; docs/openai.md describes it.", fields=[place])


def reasoning_item(job_id: str, text: str | None) -> JsonObject:
    """Return the item with the thoughts; None: it is not complete."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    status = "in_progress" if text is None else "completed"
    return {"type": "reasoning", "id": f"rs_{job_id}", "summary": [], "content": content, "status": status}


def text_part(text: str) -> JsonObject:
    """Return a part with text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(job_id: str, text: str | None, status: str = "completed") -> JsonObject:
    """Return the item with the answer; None: it is not complete."""
    content = [] if text is None else [text_part(text)]
    status = "in_progress" if text is None else status
    return {"type": "message", "id": f"msg_{job_id}", "role": "assistant", "status": status, "content": content}


def call_item(job_id: str, number: int, name: str, arguments: str | None) -> JsonObject:
    """Return the item of a call; no arguments: it is not complete."""
    return {
        "type": "function_call",
        "id": f"fc_{job_id}_{number}",
        "call_id": f"call_{job_id}_{number}",
        "name": name,
        "arguments": arguments or "",
        "status": "in_progress" if arguments is None else "completed",
    }


def output_items(job_id: str, read: Part, is_incomplete: bool) -> list[JsonObject]:
    """Return the items of a complete message: thoughts, text, calls."""
    items = [reasoning_item(job_id, read.thoughts)] if read.thoughts else []
    if read.content or not read.calls:
        items.append(message_item(job_id, read.content, "incomplete" if is_incomplete else "completed"))
    calls = enumerate(read.calls)
    return [*items, *(call_item(job_id, number, call.name, call.arguments) for number, call in calls)]
