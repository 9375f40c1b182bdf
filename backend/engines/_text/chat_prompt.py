"""Build the prompt of a text engine from a request, by the model's chat template."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Literal

from backend.common.errors import TouchstoneError, UnsupportedParameter
from backend.engines import RunRequest
from backend.tasks.text.templates import CHATML, ControlTokens, Renderer


class Chat:
    """One model's chat template. Created while the model loads; `pieces` may be called from several threads.

    `template` is None for a model without one: a plain prompt is then continued as it is, and a conversation is
    rendered with the default template, which the receipt reports.
    """

    def __init__(self, template: str | None, names: dict[str, str], marks: list[str]) -> None:
        self._has_template = template is not None
        self._words = frozenset(re.findall(r"\w+", template or ""))
        self._renderer = Renderer(CHATML if template is None else template, names, ControlTokens(marks))

    def pieces(self, request: RunRequest) -> tuple[list[str], Literal["model", "default"] | None]:
        """Return the prompt in pieces, each to be tokenized separately, and whose template rendered it.

        Raises Validation if the template rejects the messages, UnsupportedParameter if it would ignore tools or tool
        calls, ModelBroken if it fails.
        """
        tools = request.options["tools"]
        if request.options["raw"] or (request.messages is None and not self._has_template and not tools):
            return [request.prompt or ""], None
        messages = request.messages or [{"role": "user", "content": request.prompt or ""}]
        self._check("tools", bool(tools), "options.tools")
        self._check("tool_calls", any(message.get("tool_calls") for message in messages), "messages")
        return self._renderer.render(messages, tools), "model" if self._has_template else "default"

    def _check(self, word: str, needed: bool, field: str) -> None:
        if needed and word not in self._words:
            raise UnsupportedParameter(
                f"{word}: the chat template of this model has no place for them.",
                "Leave them out, or choose a model that was made to call tools.",
                fields=[field],
            )

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
