"""Tokens that come one by one."""

from __future__ import annotations

from typing import Any


class DecodeStream:
    """Gives a text as soon as it is whole."""

    def __init__(self, skip_special_tokens: bool = False) -> None:
        self._skips = skip_special_tokens
        self._waiting: list[int] = []

    def step(self, tokenizer: Any, id: int) -> str | None:
        """What a token adds, None amid a character."""
        self._waiting.append(id)
        text: str = tokenizer.decode(self._waiting, skip_special_tokens=self._skips)
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._waiting) < 4:
            return None
        self._waiting = []
        return text
