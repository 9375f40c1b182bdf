"""The options of a job that decide what its text may be: tools, a schema, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from backend.common.types import JsonObject
from backend.server.v1.call_schemas import calls_schema, close
from backend.server.v1.request_models import NamedTool
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.tools import REQUIRED_CALL, Tool


def format_options(
    tools: Sequence[Tool] | None,
    choice: Literal["auto", "none", "required"] | NamedTool,
    response_format: ResponseFormat | None,
) -> JsonObject:
    """Return the options `tools` and `response_format` of a job.

    A call that must be made is forced by a schema of the allowed calls. With tools and a schema the text is a call or
    fits the schema. `tools` are those that the model may call. Optional.
    """
    schema = _schema_of(response_format) if response_format else None
    if not tools or choice == "none":
        return {} if response_format is None else {"response_format": _as_format(response_format, schema)}
    options: JsonObject = {"tools": [tool.model_dump(exclude_none=True) for tool in tools]}
    if choice != "auto":
        name = choice.function.name if isinstance(choice, NamedTool) else None
        allowed = [tool for tool in tools if name in (None, tool.function.name)]
        options["response_format"] = _named(REQUIRED_CALL, calls_schema(allowed))
    elif schema is not None:
        options["response_format"] = _named("call_or_answer", calls_schema(tools, schema))
    return options


def _schema_of(response_format: ResponseFormat) -> JsonObject:
    """Return the schema of a format. A strict one closes the objects that do not say whether they are open."""
    named = response_format.json_schema
    if named is None:
        return {"type": "object"}
    return close(named.schema_) if named.strict else named.schema_


def _as_format(response_format: ResponseFormat, schema: JsonObject | None) -> JsonObject:
    dumped: JsonObject = response_format.model_dump(by_alias=True)
    if dumped["json_schema"] is not None:
        dumped["json_schema"]["schema"] = schema
    return dumped


def _named(name: str, schema: JsonObject) -> JsonObject:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
