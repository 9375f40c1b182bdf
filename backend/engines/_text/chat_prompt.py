"""What a text engine makes of a request: the prompt in pieces, by the model's chat template."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Literal

from backend.common.errors import TouchstoneError, UnsupportedParameter
from backend.engines import RunRequest
from backend.tasks.text.templates import CHATML, Marks, Renderer


class Chat:
    """One model's template. Made while the model loads; `pieces` may be called from several threads.

    `template` is None for a model without one: its plain prompts are continued as they are, and a conversation gets
    the default form, which the receipt says.
    """

    def __init__(self, template: str | None, names: dict[str, str], marks: list[str]) -> None:
        self._has_template = template is not None
        self._words = frozenset(re.findall(r"\w+", template or ""))
        self._renderer = Renderer(CHATML if template is None else template, names, Marks(marks))

    def pieces(self, request: RunRequest) -> tuple[list[str], Literal["model", "default"] | None]:
        """The prompt, each piece to be tokenized for itself, and whose template made it.

        Raises Validation where the template refuses the messages, UnsupportedParameter where it would drop tools or
        their calls, ModelBroken where it fails.
        """
        tools = request.options["tools"]
        if request.options["raw"] or (request.messages is None and not self._has_template and not tools):
            return [request.prompt or ""], None
        messages = request.messages or [{"role": "user", "content": request.prompt or ""}]
        self._check("tools", bool(tools), "options.tools")
        self._check("tool_calls", any(message.get("tool_calls") for message in messages), "messages")
        return self._renderer.pieces(messages, tools), "model" if self._has_template else "default"

    def _check(self, word: str, needed: bool, field: str) -> None:
        if needed and word not in self._words:
            raise UnsupportedParameter(
                f"{word}: the chat template of this model has no place for them.",
                "Leave them out, or choose a model that was made to call tools.",
                fields=[field],
            )

    @contextlib.contextmanager
    def kept_if_loaded(self, told: Callable[[Exception], TouchstoneError] | None = None) -> Iterator[None]:
        """Ends the template's process if the block fails. Libraries' errors, which share no base, become `told`."""
        try:
            yield
        except Exception as error:
            self.close()
            if told is None or isinstance(error, TouchstoneError):
                raise
            raise told(error) from error

    def close(self) -> None:
        """Ends the template's process."""
        self._renderer.close()
