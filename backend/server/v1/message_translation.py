"""Translates OpenAI's messages to those of a job: parts joined, `developer` as `system`, call arguments parsed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backend.common.errors import UnsupportedParameter, Validation
from backend.common.types import JsonObject
from backend.server.v1.request_models import ChatMessage

_TEXT_PARTS = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}  # type and key


def plain_messages(messages: Sequence[ChatMessage]) -> list[JsonObject]:
    """Return the messages of a job's request. Raises UnsupportedParameter, Validation."""
    return [_plain(message, f"messages.{number}") for number, message in enumerate(messages)]


def _plain(message: ChatMessage, place: str) -> JsonObject:
    content = join_parts(message.content, f"{place}.content")
    if content is None and message.role == "assistant" and not message.tool_calls:
        content = message.refusal or ""
    plain: JsonObject = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if message.tool_calls:
        plain["tool_calls"] = [
            _call(call, f"{place}.tool_calls.{number}") for number, call in enumerate(message.tool_calls)
        ]
    thoughts = message.reasoning_content or message.reasoning
    if thoughts and message.role == "assistant":
        plain["reasoning_content"] = thoughts
    return plain | {key: value for key in ("name", "tool_call_id") if (value := getattr(message, key))}


def join_parts(content: Any, place: str) -> str | None:
    """Return the text of all parts of a message. Raises UnsupportedParameter for a part that is not text."""
    if content is None or isinstance(content, str):
        return content
    return "".join(_text_of(part, f"{place}.{number}") for number, part in enumerate(content))


def _text_of(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        kind = kind[:50].encode("utf-8", "replace").decode()
        raise UnsupportedParameter(
            f"{where}: parts of the type {kind!r} are not supported by any model of this version.",
            "Send text parts only.",
            fields=[where],
        )
    key = _TEXT_PARTS.get(kind or "", "text")
    meaningful = {name for name, value in part.items() if value is not None} if kind else set()
    if meaningful - {"cache_control", "annotations", "logprobs"} != {"type", key} or not isinstance(part[key], str):
        raise _invalid(where, "a part should be {type: text, text: …}")
    return str(part[key])


def _call(call: JsonObject, place: str) -> JsonObject:
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise _invalid(place, "a call should be {id, type: function, function: {name, arguments}}")
    name, arguments = function.get("name"), parse_arguments(function.get("arguments", "{}"))
    if not isinstance(name, str) or arguments is None:
        raise _invalid(f"{place}.function", "it needs a name, and arguments as the text of a JSON object")
    parsed = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **parsed} if call.get("id") else parsed


def parse_arguments(text: Any) -> JsonObject | None:
    """Return the arguments of a call from their JSON text, None if it is not that of an object."""
    try:
        arguments = json.loads(text or "{}") if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _invalid(place: str, reason: str) -> Validation:
    return Validation(f"{place}: {reason}.", "Correct the message; /docs describes it.", fields=[place])
