"""The body of `POST /v1/messages`, and its messages, tools and format in the shape of a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from backend.common.config.strict_model import Name, to_validation_error
from backend.common.errors import UnsupportedParameter, Validation
from backend.common.types import JsonObject
from backend.jobs.generate_request import MESSAGE_LIMIT
from backend.server.v1.request_models import NamedTool, TextBody
from backend.server.v1.unsupported_keys import Body
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.text import TOOL_LIMIT
from backend.tasks.options.tools import Tool

_TOOL_MARKS = ("cache_control", "type", "defer_loading", "eager_input_streaming", "input_examples", "allowed_callers")
_THOUGHTS = ("thinking", "redacted_thinking")


def _content(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(block, dict) for block in value)):
        return value
    raise ValueError("should be a string or a list of blocks")


Content = Annotated[Any, BeforeValidator(_content)]


class Turn(Body):
    """One message: text, or blocks of text, thoughts, calls and results."""

    role: Literal["user", "assistant", "system"]
    content: Content = Field(description="A string or a list of blocks")


class ToolChoice(Body):
    """Whether the model may or must call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether a model that thinks should think. A budget is accepted and not enforced."""

    without_effect_here = frozenset({"budget_tokens", "display"})

    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(Body):
    """The format of the answer: a JSON Schema. `effort` is how much to think."""

    format: JsonObject | None = None
    effort: Literal["low", "medium", "high", "xhigh"] | None = None


class CountBody(TextBody):
    """The body of `POST /v1/messages/count_tokens`."""

    without_effect_here = frozenset({"context_management", "container", "inference_geo", "speed"})

    messages: list[Turn] = Field(min_length=1, max_length=MESSAGE_LIMIT)
    system: Content | None = None
    tools: list[JsonObject] | None = Field(None, max_length=TOOL_LIMIT)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None


class MessagesBody(CountBody):
    """The body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=1_000_000, description="Maximum number of tokens to generate")
    stop_sequences: list[Name] | None = Field(None, max_length=16)


def messages_of(body: CountBody) -> list[JsonObject]:
    """Return the messages of a job. Raises UnsupportedParameter, Validation."""
    messages: list[JsonObject] = []
    if body.system is not None:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for number, turn in enumerate(body.messages):
        messages += _messages(turn, f"messages.{number}.content")
    return messages


def _messages(turn: Turn, place: str) -> list[JsonObject]:
    """Return a turn as messages: results come first, since they answer the calls of the turn before."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    texts, thoughts = list[str](), list[str]()
    calls, results = list[JsonObject](), list[JsonObject]()
    for number, block in enumerate(turn.content):
        where, kind = f"{place}.{number}", block.get("type")
        if kind == "tool_use" and turn.role == "assistant":
            calls.append(_call(block, where))
        elif kind == "tool_result" and turn.role == "user":
            results.append(_result(block, where))
        elif kind in _THOUGHTS and turn.role == "assistant":
            thoughts.append(str(block.get("thinking", "")))
        else:
            texts.append(_text([block], place, number))
    message: JsonObject = {"role": turn.role, "content": "".join(texts)}
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    is_empty = turn.role == "user" and results and not texts
    return [*results, *([] if is_empty else [message])]


def _call(block: JsonObject, where: str) -> JsonObject:
    name, arguments, call_id = block.get("name"), block.get("input"), block.get("id")
    if not (isinstance(name, str) and isinstance(arguments, dict) and isinstance(call_id, str)):
        raise _invalid(where, "a tool_use needs id, name and input, which is an object")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(block: JsonObject, where: str) -> JsonObject:
    if not isinstance(call_id := block.get("tool_use_id"), str):
        raise _invalid(where, "a tool_result needs the tool_use_id of its call")
    text = _text(block.get("content") or "", f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def _text(content: Any, place: str, first: int = 0) -> str:
    """Return the text of blocks. Raises UnsupportedParameter for a block that is not text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(place, "it should be a string or a list of blocks")
    texts = []
    for number, block in enumerate(content, first):
        where = f"{place}.{number}"
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise UnsupportedParameter(
                f"{where}: blocks of the type {kind[:50]!r} are not supported here.", "Send text.", fields=[where]
            )
        if kind is None or not isinstance(block.get("text"), str):
            raise _invalid(where, "a block should be {type: text, text: …}")
        texts.append(block["text"])
    return "".join(texts)


def _invalid(place: str, reason: str) -> Validation:
    return Validation(f"{place}: {reason}.", "Correct the message; docs/anthropic.md describes it.", fields=[place])


def function_tools(body: CountBody) -> list[Tool]:
    """Return the tools in the shape of a chat. Raises UnsupportedParameter for a built-in tool."""
    tools = []
    for number, tool in enumerate(body.tools or ()):
        kind = str(tool.get("type") or "custom")[:50]
        if kind != "custom":
            raise UnsupportedParameter(
                f"tools.{number}: the built-in tool {kind!r} is not supported.",
                "Send tools with an input_schema.",
                fields=[f"tools.{number}"],
            )
        function = {key: value for key, value in tool.items() if value is not None and key not in _TOOL_MARKS}
        if "input_schema" in function:
            function["parameters"] = function.pop("input_schema")
        try:
            tools.append(Tool.model_validate({"type": "function", "function": function}))
        except ValidationError as error:
            items = [{**item, "loc": ("tools", number, *item["loc"][1:])} for item in error.errors()]
            raise to_validation_error(items, Tool.model_fields) from error
    return tools


def tool_choice(body: CountBody, tools: list[Tool]) -> Literal["auto", "none", "required"] | NamedTool:
    """Return the choice in the shape of a chat. Raises Validation for a tool that is not there."""
    if body.tool_choice is None or body.tool_choice.type in ("auto", "none"):
        return "none" if body.tool_choice and body.tool_choice.type == "none" else "auto"
    names = [tool.function.name for tool in tools]
    if body.tool_choice.type == "any" and names:
        return "required"
    if body.tool_choice.name not in names:
        raise Validation(
            "tool_choice names none of the tools.", "Send the name of one of the tools.", fields=["tool_choice"]
        )
    return NamedTool.model_validate({"type": "function", "function": {"name": body.tool_choice.name}})


def response_format(body: CountBody) -> ResponseFormat | None:
    """Return the format of the answer in the shape of a chat. Raises Validation."""
    form = body.output_format or (body.output_config.format if body.output_config else None)
    if form is None:
        return None
    key = "output_format" if body.output_format else "output_config.format"
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise Validation(f"{key}: should be {{type: json_schema, schema: …}}.", "Send a JSON Schema.", fields=[key])
    return ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"schema": form["schema"]}})
