"""Build the prompt of a text engine from a request, by the model's chat template."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.common.engine_api import EventData, Message
from backend.common.errors import TouchstoneError, UnsupportedParameter
from backend.common.types import JsonObject
from backend.engines import Emit, RunRequest
from backend.tasks.text import reasoning, tool_prompt
from backend.tasks.text.templates import CHATML, ControlTokens, Renderer

_THINKING_SWITCHES = ("enable_thinking", "thinking")  # variables that templates of different families read


@dataclass(frozen=True)
class Prompt:
    """A prompt in pieces, each to be tokenized separately; or `tokens`, which need no tokenizer.

    `template` is whose template rendered it. `chosen` is what the receipt reports: `tool_prompt: generic`.
    """

    pieces: list[str]
    template: Literal["model", "default"] | None = None
    chosen: Mapping[str, object] = field(default_factory=dict)
    tokens: list[int] | None = None
    opens_thoughts: bool = False

    def announce(self, emit: Emit) -> Emit:
        """Return a callback that emits `progress` with the phase `thinking` before the first token.

        Only if the prompt opens the model's thoughts; the generated text then has no opening mark.
        """
        if not self.opens_thoughts:
            return emit
        is_announced = False

        def announcing(event: str, data: EventData) -> bool:
            nonlocal is_announced
            if event == "token" and not is_announced:
                is_announced = True
                if emit("progress", {"phase": reasoning.PHASE, "done": 0, "total": None, "unit": "tokens"}):
                    return True
            return emit(event, data)

        return announcing


class Chat:
    """One model's chat template. Created while the model loads; `prompt` may be called from several threads.

    `template` is None for a model without one: a plain prompt is then continued as it is, and a conversation is
    rendered with the default template, which the receipt reports.
    """

    def __init__(self, template: str | None, names: dict[str, str], marks: list[str]) -> None:
        self._has_template = template is not None
        self._words = frozenset(re.findall(r"\w+", template or ""))
        self._has_thoughts = any(opening in (template or "") for opening, _ in reasoning.MARKS)
        self._renderer = Renderer(CHATML if template is None else template, names, ControlTokens(marks))

    def prompt(self, request: RunRequest) -> Prompt:
        """Return the prompt. An assistant's message at the end is continued.

        Raises Validation if the template rejects the messages,
        UnsupportedParameter for a `reasoning_effort` that it would ignore, ModelBroken if it fails.
        """
        tools, tokens = request.options["tools"], request.options.get("prompt_tokens")
        if tokens is not None:
            return Prompt([], tokens=tokens)
        if request.options["raw"] or (request.messages is None and not self._has_template and not tools):
            return Prompt([request.prompt or ""])
        messages = request.messages or [{"role": "user", "content": request.prompt or ""}]
        values = self._values(request.options)
        is_generic, messages = self._with_place(messages, tools)
        continues = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
        pieces = self._renderer.render(messages, None if is_generic else tools, values, continues)
        return Prompt(
            pieces,
            "model" if self._has_template else "default",
            {"tool_prompt": "generic"} if is_generic else {},
            opens_thoughts=reasoning.find_open_mark("".join(pieces[-2:])) is not None,
        )

    def _with_place(self, messages: list[Message], tools: list[JsonObject] | None) -> tuple[bool, list[Message]]:
        """Return the messages as the template can take them, and whether tools or calls are in the generic form."""
        lacks_tools = bool(tools) and "tools" not in self._words
        has_calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
        lacks_calls = has_calls and (lacks_tools or "tool_calls" not in self._words)
        if lacks_calls:
            messages = tool_prompt.calls_as_text(messages)
        if lacks_tools and tools:
            messages = tool_prompt.with_tools(messages, tools)
        return lacks_tools or lacks_calls, messages

    def _values(self, options: Mapping[str, Any]) -> JsonObject:
        """Return the caller's values for the template's variables. Raises UnsupportedParameter."""
        values = dict(options.get("chat_template_kwargs") or {})
        effort = options.get("reasoning_effort")
        if effort is None:
            return values
        if "reasoning_effort" in self._words:
            return {"reasoning_effort": effort, **values}
        switches = [name for name in _THINKING_SWITCHES if name in self._words]
        if switches:
            return {**dict.fromkeys(switches, effort != "none"), **values}
        if (effort == "none") == self._has_thoughts:
            raise UnsupportedParameter(
                "reasoning_effort: this model always thinks."
                if self._has_thoughts
                else "reasoning_effort: this model does not think before it answers.",
                "Leave it out, or choose another model.",
                fields=["options.reasoning_effort"],
            )
        return values

    @contextlib.contextmanager
    def kept_if_loaded(self, to_error: Callable[[Exception], TouchstoneError] | None = None) -> Iterator[None]:
        """End the template's process if the block raises. The callback `to_error` converts a library's exception."""
        try:
            yield
        except Exception as error:
            self.close()
            if to_error is None or isinstance(error, TouchstoneError):
                raise
            raise to_error(error) from error

    def close(self) -> None:
        """End the template's process."""
        self._renderer.close()
