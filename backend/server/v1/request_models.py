"""The request bodies of the OpenAI-compatible API: the supported keys and their values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from backend.common.config.strict_model import Name, StrictModel
from backend.common.errors import UnsupportedParameter
from backend.common.types import Fallback, JsonObject
from backend.jobs.generate_request import MESSAGE_LIMIT, TEXT_LIMIT
from backend.server.v1.unsupported_keys import Body
from backend.tasks.options.response_format import ResponseFormat
from backend.tasks.options.sampling_numbers import Share
from backend.tasks.options.text import LOGPROBS_LIMIT, TOOL_LIMIT, Sampling
from backend.tasks.options.tools import FunctionName, Tool

CHOICE_LIMIT = 128  # jobs per request


def _unsupported(key: str, why: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"{key} is not supported {why}.", "Leave one of the two out.", fields=[key])


class TargetKeys(Body):
    """The model, and Touchstone's keys for where it runs."""

    model: str | None = Field(None, max_length=2000, description="Required: an id of GET /v1/models")
    device: Name = Field("auto", description="A device id, an alias, or auto")
    fallback: Fallback = Field("cpu", description="Where to run if the device cannot be used")
    engine: Name | None = None


class TextBody(TargetKeys, Sampling):
    """The keys that all routes for text share."""

    top_p: Share = Field(0.95, ge=0, le=1, allow_inf_nan=False, description="Share of probability to sample from")
    top_k: int = Field(0, ge=0, le=1_000_000, description="Number of likeliest tokens to sample from. Default: 0, all")
    seed: int | None = Field(
        None,
        ge=-(2**63),
        lt=2**63,
        description="The same seed returns the same text. Values beyond 32 bits are folded; -1 is random",
    )
    stream: bool = False


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = Field(False, description="Send the token counts in one more chunk at the end")


class Generation(TextBody):
    """The keys that chat and completions share."""

    n: int = Field(1, ge=1, le=CHOICE_LIMIT, description="Number of choices. Each is a job")
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _streamed(self) -> Generation:
        if self.with_usage and not self.stream:
            raise ValueError("stream_options belong to stream: true")
        return self

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class NamedFunction(StrictModel):
    """The function that must be called."""

    name: FunctionName


class NamedTool(StrictModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


def _content(value: Any) -> Any:
    if value is None or isinstance(value, str | list):
        return value
    raise ValueError("should be a string or a list of parts")


class ChatMessage(Body):
    """One turn of a conversation. `developer` is an alias of `system`."""

    without_effect_here = frozenset({"annotations"})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Any, BeforeValidator(_content)] = Field(None, description="A string or a list of text parts")
    name: Name | None = Field(None, description="Author of the message, or the tool; for templates with a place for it")
    reasoning_content: str | None = Field(None, description="What the assistant thought; for templates that show it")
    reasoning: str | None = Field(None, description="Alias of reasoning_content")
    refusal: str | None = Field(None, description="Content of an assistant that refused")
    tool_calls: list[JsonObject] | None = None
    tool_call_id: Name | None = None


def _tools(value: Any) -> Any:
    """Return the tools without keys that are null or mean nothing here."""
    if not isinstance(value, list):
        return value
    return [_without_marks(tool) for tool in value]


def _without_marks(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    kept = {key: value for key, value in tool.items() if value is not None and key != "cache_control"}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = {key: value for key, value in function.items() if value is not None}
    return kept


class ChatBody(Generation):
    """The body of `POST /v1/chat/completions`.

    Null means the default. Keys that change nothing are accepted; every other key that is not listed is refused by name
    (docs/openai.md).
    """

    defaults_here = {"logprobs": (0,), "top_logprobs": ()}

    messages: list[ChatMessage] = Field(min_length=1, max_length=MESSAGE_LIMIT)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000, description="Alias of max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=LOGPROBS_LIMIT)
    response_format: Annotated[ResponseFormat | None, BeforeValidator(ResponseFormat.none_if_plain)] = None
    tools: Annotated[list[Tool] | None, BeforeValidator(_tools)] = Field(None, max_length=TOOL_LIMIT)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: JsonObject | None = Field(None, description="Values for variables of the chat template")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Only for models that think before they answer"
    )
    add_generation_prompt: bool | None = Field(None, description="Only the value that the last message has anyway")
    continue_final_message: bool | None = Field(
        None, description="Only the value that the last message has anyway: an assistant's message is continued"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> ChatBody:
        if self.max_completion_tokens and "max_tokens" in self.model_fields_set:
            if self.max_completion_tokens != self.max_tokens:
                raise ValueError("max_tokens and max_completion_tokens mean the same and differ: leave one out")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs belongs to logprobs: true")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is none of the tools")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is required, but the request has no tools")
        self._check_continuation()
        return self

    def _check_continuation(self) -> None:
        continues = self.messages[-1].role == "assistant" and not self.messages[-1].tool_calls
        for name, value, expected in (
            ("continue_final_message", self.continue_final_message, continues),
            ("add_generation_prompt", self.add_generation_prompt, not continues),
        ):
            if value not in (None, expected):
                last = "a message of the assistant is continued" if continues else "only the assistant's is continued"
                raise ValueError(f"{name} cannot be {str(value).lower()} here: at the end of messages, {last}")

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call a tool."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the model must call a tool."""
        return self.offers_tools and self.tool_choice != "auto"


def _texts(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(text, str) and text for text in texts):
        return texts
    if isinstance(texts, list) and texts and all(_is_token(item) or isinstance(item, list) for item in texts):
        raise ValueError("token ids are not accepted, since they belong to one vocabulary: send the text itself")
    raise ValueError("should be a string or a list of strings, none of them empty")


def _prompts(value: Any) -> Any:
    prompts = [value] if isinstance(value, str) or _are_tokens(value) else value
    if isinstance(prompts, list) and prompts and all(isinstance(each, str) and each for each in prompts):
        return prompts
    if isinstance(prompts, list) and prompts and all(map(_are_tokens, prompts)):
        return prompts
    raise ValueError("should be a string, a list of strings, or token ids; none of them empty")


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


Texts = Annotated[list[str], BeforeValidator(_texts)]
Prompts = Annotated[list[str | list[int]], BeforeValidator(_prompts)]


class CompletionBody(Generation):
    """The body of `POST /v1/completions`. The prompt is continued without a chat template."""

    unsupported_here = {"suffix": ": no model of this version can insert text"}
    defaults_here = {"logprobs": (False,)}

    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=LOGPROBS_LIMIT)
    echo: bool = Field(False, description="Return the prompt before the text")

    @model_validator(mode="after")
    def _can_echo(self) -> CompletionBody:
        if self.echo and self.logprobs is not None:
            raise _unsupported("echo", "with logprobs: the probabilities of a prompt are not computed")
        if self.echo and any(isinstance(prompt, list) for prompt in self.prompt):
            raise _unsupported("echo", "with token ids: their text is not known here")
        return self

    @model_validator(mode="after")
    def _bounded(self) -> CompletionBody:
        if len(self.prompt) * self.n > CHOICE_LIMIT:
            raise ValueError(f"{len(self.prompt)} prompts, each {self.n} times, are more than {CHOICE_LIMIT} choices")
        return self


class EmbeddingsBody(TargetKeys):
    """The body of `POST /v1/embeddings`."""

    unsupported_here = {"dimensions": ": the vectors have the model's own length"}

    input: Annotated[Texts, Field(max_length=TEXT_LIMIT)]
    encoding_format: Literal["float", "base64"] = "float"
