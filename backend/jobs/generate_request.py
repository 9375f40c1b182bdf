"""The generation request: the body of `POST /api/generate`, validated strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from backend.common import engine_api
from backend.common.config.strict_model import Name, StrictModel, to_validation_error
from backend.common.types import Fallback, JsonObject
from backend.engines import engines

TEXT_LIMIT = 2048  # in one job for embeddings
MESSAGE_LIMIT = 2048  # in one conversation; validating hundreds of thousands would block the event loop
DEVICE_LIMIT = 64
Spread = Literal["parallel", "sequential", "first_free"]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class Call(StrictModel):
    """A function that the model calls, with its arguments by name."""

    name: str
    arguments: JsonObject


class ToolCall(StrictModel):
    """A tool call in a message of the assistant; a message of the tool answers it by id."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: Call


class Message(StrictModel):
    """One message of a conversation. Messages of the assistant may call tools; those of a tool hold the result."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    name: Name | None = Field(None, description="Author of the message, or the tool; for templates with a place for it")
    reasoning_content: str | None = Field(None, description="What the assistant thought before it answered")
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _check_members(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("content may be null only with tool_calls")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to the role assistant")
        if self.reasoning_content is not None and self.role != "assistant":
            raise ValueError("reasoning_content belongs to the role assistant")
        if self.role != "tool" and self.tool_call_id:
            raise ValueError("tool_call_id belongs to the role tool")
        return self

    @model_serializer(mode="wrap")
    def _without_nulls(self, serialize: SerializerFunctionWrapHandler) -> JsonObject:
        """Return the members that are set; `content` in any case."""
        return {key: value for key, value in serialize(self).items() if value is not None or key == "content"}

    def to_typed(self) -> engine_api.Message:
        """Return the message as workers get it."""
        return cast("engine_api.Message", self.model_dump())  # the type holds the same members


class GenerateRequest(StrictModel):
    """The body of `POST /api/generate`."""

    task: Name | None = Field(None, description="Default: the model's task, or text")
    model: Name | None = Field(None, description="Default: the task's default model")
    device: Name = Field("auto", description="A device id, an alias, or auto")
    backend: Name | None = Field(None, description="Another name for device")
    devices: Annotated[list[Name], Field(min_length=1, max_length=DEVICE_LIMIT)] | None = Field(
        None, description="Several devices that may run the job; instead of device"
    )
    spread: Spread | None = Field(
        None,
        description="How several devices run the job: variations divided and made in parallel or sequential (one share "
        "after another), or all on the first_free device; default: parallel if there are several variations",
    )
    fallback: Fallback = Field("cpu", description="Where to run if the device cannot")
    engine: Name | None = None
    prompt: NonEmpty | None = Field(
        None, description="One message of the user; or use messages. For music: a description"
    )
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGE_LIMIT)] | None = None
    texts: Annotated[list[NonEmpty], Field(min_length=1, max_length=TEXT_LIMIT)] | None = Field(
        None, description="For embeddings: a vector is made of each"
    )
    inputs: dict[Name, Any] | None = Field(
        None, description="By name: the id that PUT /api/files gave, or for onnx also a nested array"
    )
    options: JsonObject = Field(default_factory=dict, description="See the model's options_schemas")
    stream: bool = Field(False, description="Answer with the job's events as they come")
    metadata: JsonObject | None = Field(None, description="Kept with the job, without effect on it; default: none")

    @model_validator(mode="after")
    def _check_members(self) -> GenerateRequest:
        if self.backend is not None and self.device not in ("auto", self.backend):
            raise ValueError(
                f"device is {self.device!r} and backend is {self.backend!r}: they mean the same, leave one out"
            )
        if self.devices is not None and self.asked_device != "auto":
            raise ValueError(f"device is {self.asked_device!r} and devices are named too: leave one of the two out")
        if self.spread is not None and self.devices is None:
            raise ValueError("spread is for several devices: name them in devices")
        if self.prompt is not None and self.messages is not None:
            raise ValueError("prompt and messages exclude each other: leave one out")
        return self

    @property
    def asked_device(self) -> str:
        """The device as the caller named it. Default: auto."""
        return self.backend or self.device


def parse_request(body: Mapping[str, Any]) -> GenerateRequest:
    """Parse a request that did not come through HTTP. Raises Validation."""
    try:
        return GenerateRequest.model_validate(dict(body))
    except ValidationError as error:
        raise to_validation_error(error.errors(), GenerateRequest.model_fields) from error


def served_tasks() -> list[str]:
    """Return the tasks that at least one engine of this version serves, sorted."""
    return sorted({task for engine in engines().values() for task in engine.tasks})
