"""Functions that a model may ask to be called. The shape is that of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.common.config.strict_model import StrictModel
from backend.tasks.options.response_format import Schema

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(StrictModel):
    """A function and its parameters, as a JSON Schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = Field(None, description="Without effect")


class Tool(StrictModel):
    """A tool; there are no others than functions."""

    type: Literal["function"]
    function: Function
