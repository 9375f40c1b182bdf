"""Tool definitions for text generation, with the fields of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import StrictModel
from backend.tasks.options.response_format import Schema

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


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
