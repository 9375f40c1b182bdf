"""What callers may ask for: the shape of a generation request, checked strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from backend.common.config.strict_model import Name, StrictModel, to_validation_error
from backend.common.types import Fallback
from backend.engines import engines

TEXT_LIMIT = 2048  # in one job for embeddings
MESSAGE_LIMIT = 2048  # in one conversation; checking hundreds of thousands would hold everything else up
DEVICE_LIMIT = 64
Spread = Literal["parallel", "sequential", "first_free"]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class Call(StrictModel):
    """A function that the model asked to be called, with the arguments by name."""

    name: str
    arguments: dict[str, Any]


class ToolCall(StrictModel):
    """A call in a turn of the assistant; a turn of the tool answers it by its id."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: Call


class Message(StrictModel):
    """One turn of a conversation. Turns of the assistant may call tools, and those of a tool tell what came of it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    name: Name | None = Field(None, description="Of the tool")
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("content may be null only beside tool_calls")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to the role assistant")
        if self.role != "tool" and (self.tool_call_id or self.name):
            raise ValueError("tool_call_id and name belong to the role tool")
        return self

    @model_serializer(mode="wrap")
    def _said(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What was said, and nothing about what was not."""
        return {key: value for key, value in plain(self).items() if value is not None or key == "content"}


class GenerateRequest(StrictModel):
    """The body of `POST /api/generate`."""

    task: Name | None = Field(None, description="Default: the model's task, or text")
    model: Name | None = Field(None, description="Default: the task's default model")
    device: Name = Field("auto", description="A device id, an alias, or auto")
    backend: Name | None = Field(None, description="Another name for device")
    devices: Annotated[list[Name], Field(min_length=1, max_length=DEVICE_LIMIT)] | None = Field(
        None, description="Several devices, of which each may do it; instead of device"
    )
    spread: Spread | None = Field(
        None,
        description="How several devices do it: variations shared out, made in parallel or sequential (one share after "
        "the other), or all on the one that is first_free; default: parallel where there are several variations",
    )
    fallback: Fallback = Field("cpu", description="Where to run if the device cannot")
    engine: Name | None = None
    prompt: NonEmpty | None = Field(None, description="One message of a user; or use messages. For music: its wishes")
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGE_LIMIT)] | None = None
    texts: Annotated[list[NonEmpty], Field(min_length=1, max_length=TEXT_LIMIT)] | None = Field(
        None, description="For embeddings: a vector is made of each"
    )
    inputs: dict[Name, Any] | None = Field(
        None, description="By name: the id that PUT /api/files gave, or for onnx also a nested array"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="See the model's options_schemas")
    stream: bool = Field(False, description="Answer with the job's events as they come")

    @model_validator(mode="after")
    def _whole(self) -> GenerateRequest:
        if self.backend is not None and self.device not in ("auto", self.backend):
            raise ValueError(
                f"device is {self.device!r} and backend is {self.backend!r}: they mean the same, leave one out"
            )
        if self.devices is not None and self.asked_device != "auto":
            raise ValueError(f"device is {self.asked_device!r} and devices are named too: leave one of the two out")
        if self.spread is not None and self.devices is None:
            raise ValueError("spread tells how several devices do it: name them in devices")
        if self.prompt is not None and self.messages is not None:
            raise ValueError("prompt and messages exclude each other: leave one out")
        return self

    @property
    def asked_device(self) -> str:
        """The device as the caller named it."""
        return self.backend or self.device


def parse_request(body: Mapping[str, Any]) -> GenerateRequest:
    """Checks a request that did not come through HTTP. Raises Validation."""
    try:
        return GenerateRequest.model_validate(dict(body))
    except ValidationError as error:
        raise to_validation_error(error.errors(), GenerateRequest.model_fields) from error


def served_tasks() -> list[str]:
    """The tasks that some engine of this version serves."""
    return sorted({task for engine in engines().values() for task in engine.tasks})
