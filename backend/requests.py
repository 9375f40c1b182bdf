"""What callers may ask for: the shape of a generation request and the options of each task, checked strictly."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from backend.engines import engines
from backend.errors import TouchstoneError, Validation
from backend.types import Fallback

NAME_LIMIT = 200
STOP_LIMIT = 16
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stops(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if texts is None or (
        isinstance(texts, list) and len(texts) <= STOP_LIMIT and all(isinstance(t, str) and t for t in texts)
    ):
        return texts
    raise ValueError(f"should be a text, or a list of at most {STOP_LIMIT} texts, none of them empty")


class Strict(BaseModel):
    """No unknown keys, no guesses about types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _unicode(cls, data: Any) -> Any:
        """Half of a surrogate pair, in a key or a value, would break the worker, the history and every answer."""
        pending: list[tuple[tuple[str, ...], Any]] = [((), data)]
        while pending:
            place, item = pending.pop()
            if isinstance(item, dict):
                pending += [((*place, ascii(key)[1:-1]), key) for key in item]
                pending += [((*place, str(key)), value) for key, value in item.items()]
            elif isinstance(item, list):
                pending += [((*place, str(index)), value) for index, value in enumerate(item)]
            elif isinstance(item, str) and not _is_unicode(item):
                raise PydanticCustomError("string_unicode", "not Unicode", {"place": ".".join(place)})
        return data


class TextOptions(Strict):
    """How text is sampled and when it ends."""

    max_tokens: int = Field(256, ge=1, le=1_000_000, description="Most tokens to generate")
    temperature: float = Field(0.7, ge=0, le=2, allow_inf_nan=False, description="0 always takes the likeliest token")
    top_p: float = Field(0.95, gt=0, le=1, allow_inf_nan=False, description="Share of probability to sample from")
    top_k: int = Field(40, ge=0, le=1_000_000, description="Number of likeliest tokens to sample from; 0 is all")
    seed: int | None = Field(None, ge=0, le=2**32 - 2, description="The same seed gives the same text")
    stop: Annotated[str | list[str] | None, BeforeValidator(_stops)] = Field(
        None, description="Text, or list of texts, at which the generation ends"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=2, allow_inf_nan=False, description="Above 1 discourages repetition"
    )


OPTIONS: dict[str, type[Strict]] = {"text": TextOptions}


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class GenerateRequest(Strict):
    """The body of `POST /api/generate`."""

    task: Name | None = Field(None, description="Default: the model's task, or text")
    model: Name | None = Field(None, description="Default: the task's default model")
    device: Name = Field("auto", description="A device id, an alias, or auto")
    backend: Name | None = Field(None, description="Another name for device")
    fallback: Fallback = Field("cpu", description="Where to run if the device cannot")
    engine: Name | None = None
    prompt: NonEmpty | None = Field(None, description="One message of a user; or use messages")
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    inputs: dict[str, str] | None = Field(None, description="Files by name; no text model takes any")
    options: dict[str, Any] = Field(default_factory=dict, description="See the model's options_schema")
    stream: bool = Field(False, description="Answer with the job's events as they come")

    @model_validator(mode="after")
    def _whole(self) -> GenerateRequest:
        if self.backend is not None and self.device not in ("auto", self.backend):
            raise ValueError(
                f"device is {self.device!r} and backend is {self.backend!r}: they mean the same, leave one out"
            )
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
        raise explained(error.errors(), GenerateRequest.model_fields) from error


def parse_options(task: str, options: Mapping[str, Any], default_max_tokens: int) -> dict[str, Any]:
    """The options of a task with all defaults filled in. Raises Validation."""
    kind = OPTIONS[task]
    try:
        parsed = kind.model_validate({"max_tokens": default_max_tokens, **options})
    except ValidationError as error:
        errors = [{**item, "loc": ("options", *item["loc"])} for item in error.errors()]
        raise explained(errors, kind.model_fields) from error
    return parsed.model_dump()


def options_schema(task: str, default_max_tokens: int) -> dict[str, Any]:
    """The JSON Schema of a task's options, for `Model.options_schema`; empty for tasks that take none."""
    if task not in OPTIONS:
        return {}
    schema = OPTIONS[task].model_json_schema()
    if "max_tokens" in schema["properties"]:
        schema["properties"]["max_tokens"]["default"] = default_max_tokens
    return schema


def served_tasks() -> list[str]:
    """The tasks that some engine of this version serves."""
    return sorted({task for engine in engines().values() for task in engine.tasks})


def explained(errors: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> TouchstoneError:
    """One Validation for pydantic's list of errors, with the nearest right key for one that is not known."""
    sentences, remedies = [], []
    for error in errors[:5]:
        where = _place(error) or "the request"
        if error["type"] == "extra_forbidden":
            key = str(error["loc"][-1])
            here = _known_at(known, error["loc"][:-1])
            near = difflib.get_close_matches(key, here, n=1, cutoff=0.5)
            sentences.append(f"{where[:NAME_LIMIT]!r} is not known")
            remedies.append(f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(here)}.")
        elif error["type"] == "string_unicode":
            sentences.append(f"{where} is not valid Unicode (half of a surrogate pair)")
            remedies.append("Send whole characters.")
        elif error["type"] == "model_attributes_type":
            sentences.append(f"{where} is not a JSON object")
        else:
            message = str(error["msg"]).removeprefix("Value error, ")
            sentences.append(message if where == "the request" else f"{where}: {message[0].lower()}{message[1:]}")
    fields = [place for error in errors[:5] if (place := _place(error))]
    remedy = " ".join(dict.fromkeys(remedies)) or "Correct the request; /docs describes it."
    return Validation("; ".join(sentences) + ".", remedy, fields=fields)


def _known_at(known: Mapping[str, Any], place: Sequence[str | int]) -> Mapping[str, Any]:
    """The fields of the object at `place`, found by walking the annotations."""
    for part in place:
        pending = [known[str(part)].annotation] if str(part) in known else []
        while pending:
            hint = pending.pop()
            pending += get_args(hint)
            if isinstance(hint, type) and issubclass(hint, Strict):
                known = hint.model_fields
    return known


def _place(error: Mapping[str, Any]) -> str:
    inner = error.get("ctx", {}).get("place", "")
    return ".".join(str(part) for part in (*error["loc"], inner) if part not in ("body", ""))
