"""What a text engine makes of a request: the prompt in pieces, by the model's chat template."""

from __future__ import annotations

from typing import Literal

from backend.engines import RunRequest
from backend.templates import CHATML, Marks, Renderer


class Chat:
    """One model's template. Made while the model loads; `pieces` may be called from several threads.

    `template` is None for a model without one: its plain prompts are continued as they are, and a conversation gets
    the default form, which the receipt says.
    """

    def __init__(self, template: str | None, names: dict[str, str], marks: list[str]) -> None:
        self._has_template = template is not None
        self._renderer = Renderer(CHATML if template is None else template, names, Marks(marks))

    def pieces(self, request: RunRequest) -> tuple[list[str], Literal["model", "default"] | None]:
        """The prompt, each piece to be tokenized for itself, and whose template made it.

        Raises Validation where the template refuses the messages, ModelBroken where it fails.
        """
        if request.messages is None and not self._has_template:
            return [request.prompt or ""], None
        messages = request.messages or [{"role": "user", "content": request.prompt or ""}]
        return self._renderer.pieces(messages), "model" if self._has_template else "default"

    def close(self) -> None:
        """Ends the template's process."""
        self._renderer.close()
