"""Tool definitions for text generation, with the fields of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from backend.common.config.strict_model import StrictModel
from backend.tasks.options.response_format import Schema

REQUIRED_CALL = "call"  # the name of the schema that stands for a required tool_choice
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class Function(StrictModel):
    """A function with its name, description and parameters. `parameters` is the JSON Schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = Field(None, description="Accepted and ignored")


class Tool(StrictModel):
    """A tool. The only type is `function`."""

    type: Literal["function"]
    function: Function


def is_required_call(options: Mapping[str, Any]) -> bool:
    """Return whether the response format of a text was made from a required `tool_choice`, not sent by the client."""
    schema = (options.get("response_format") or {}).get("json_schema") or {}
    return bool(options.get("tools")) and schema.get("name") == REQUIRED_CALL
