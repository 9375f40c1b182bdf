"""The body of `POST /v1/responses`, and its tools and format in the shape of a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from backend.common.config.strict_model import to_validation_error
from backend.common.errors import UnsupportedParameter
from backend.common.types import JsonObject
from backend.jobs.generate_request import MESSAGE_LIMIT
from backend.server.v1.request_models import NamedTool, TextBody
from backend.server.v1.unsupported_keys import Body
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.text import TOOL_LIMIT
from backend.tasks.options.tools import Tool

ECHOED = (
    "instructions max_output_tokens metadata parallel_tool_calls previous_response_id reasoning store temperature text "
    "tool_choice tools top_p"
).split()
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class TextConfig(Body):
    """The format of the text."""

    format: JsonObject | None = None


class Reasoning(Body):
    """How much to think. Thoughts are returned as they are; a summary is accepted and not made."""

    without_effect_here = frozenset({"summary", "generate_summary"})

    effort: Effort | None = None


class ResponseStreamOptions(Body):
    """Options of a stream. None has an effect here."""


def _input(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return value
    raise ValueError("should be a string or a list of items")


def _include(value: Any) -> Any:
    if isinstance(value, list) and set(map(str, value)) <= {"reasoning.encrypted_content"}:
        return value
    raise ValueError("only reasoning.encrypted_content is known, which has no effect")


class ResponseBody(TextBody):
    """The body of `POST /v1/responses`."""

    without_effect_here = frozenset({"client_metadata", "max_tool_calls"})

    input: Annotated[Any, BeforeValidator(_input)] = Field(description="A text, or a list of items")
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    max_output_tokens: int | None = Field(None, ge=1, le=1_000_000)
    metadata: JsonObject | None = None
    store: bool = True
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: list[JsonObject] | None = Field(None, max_length=TOOL_LIMIT)
    tool_choice: Literal["auto", "none", "required"] | JsonObject = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: JsonObject | None = None
    include: Annotated[Any, BeforeValidator(_include)] = None
    stream_options: ResponseStreamOptions | None = None

    @model_validator(mode="after")
    def _check_input(self) -> ResponseBody:
        if len(self.input) == 0 and not self.previous_response_id:
            raise ValueError("input is empty")
        if isinstance(self.input, list) and len(self.input) > MESSAGE_LIMIT:
            raise ValueError(f"input has more than {MESSAGE_LIMIT} items")
        return self


def response_format(body: ResponseBody) -> ResponseFormat | None:
    """Return the format of the text in the shape of a chat. Raises Validation."""
    form = dict(body.text.format or {}) if body.text else {}
    kind = form.pop("type", "text")
    if kind == "text":
        return None
    named = {key: value for key, value in form.items() if value is not None}
    try:
        return ResponseFormat.model_validate({"type": kind, **({"json_schema": named} if named else {})})
    except ValidationError as error:
        items = [{**item, "loc": ("text", "format", *item["loc"])} for item in error.errors()]
        raise to_validation_error(items, ResponseFormat.model_fields) from error


def function_tools(body: ResponseBody) -> list[Tool]:
    """Return the tools in the shape of a chat. Raises UnsupportedParameter for one that is not a function."""
    tools = []
    for number, tool in enumerate(body.tools or ()):
        kind = str(tool.get("type"))[:50]
        if kind != "function":
            raise UnsupportedParameter(
                f"tools.{number}: tools of the type {kind!r} are not supported.",
                "Send functions only.",
                fields=[f"tools.{number}"],
            )
        function = {key: value for key, value in tool.items() if value is not None and key not in ("type", *_IGNORED)}
        try:
            tools.append(Tool.model_validate({"type": "function", "function": function}))
        except ValidationError as error:
            items = [{**item, "loc": ("tools", number, *item["loc"][1:])} for item in error.errors()]
            raise to_validation_error(items, Tool.model_fields) from error
    return tools


_IGNORED = ("cache_control", "defer_loading")


def tool_choice(body: ResponseBody, tools: list[Tool]) -> Literal["auto", "none", "required"] | NamedTool:
    """Return the choice in the shape of a chat. Raises UnsupportedParameter for a tool that is not there."""
    if isinstance(body.tool_choice, str):
        if body.tool_choice == "required" and not tools:
            raise _bad_choice("tool_choice is required, but the request has no tools.")
        return body.tool_choice
    name = body.tool_choice.get("name")
    if body.tool_choice.get("type") != "function" or name not in [tool.function.name for tool in tools]:
        raise _bad_choice("tool_choice names none of the tools.")
    return NamedTool.model_validate({"type": "function", "function": {"name": name}})


def _bad_choice(detail: str) -> UnsupportedParameter:
    remedy = 'Send "auto", "none", "required" or {"type": "function", "name": …}.'
    return UnsupportedParameter(detail, remedy, fields=["tool_choice"])
