"""Reads the text of a chat while it streams: what the model thinks, what it answers, and which tools it calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.server.v1.tool_calls import Call, ToolCallParser
from backend.tasks.options.tools import Tool
from backend.tasks.text.reasoning import ReasoningParser


@dataclass
class Part:
    """A part of a message: thoughts, content, and at its end the calls. `is_cut`: a call after them is incomplete."""

    thoughts: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    is_cut: bool = False


class MessageReader:
    """Separates thoughts, content and calls of one text.

    `tools` are the names of the tools that the model may call; None: none may be called. `is_constrained`: the text
    follows a grammar from its first token on, so it has no thoughts. `must_call`: it is a call in any case.
    """

    def __init__(self, tools: Sequence[str] | None, single: bool, is_constrained: bool, must_call: bool) -> None:
        self._thoughts = None if is_constrained else ReasoningParser()
        self._calls = ToolCallParser(tools, single) if tools is not None else None
        self._must_call = must_call

    def open_thoughts(self) -> None:
        """Begin within the thoughts: the prompt has their opening mark."""
        if self._thoughts:
            self._thoughts = ReasoningParser(is_open=True)

    def feed(self, text: str) -> Part:
        """Add a piece of text. Returns what it completes."""
        thoughts, answer = self._thoughts.feed(text) if self._thoughts else ("", text)
        return Part(thoughts, self._calls.feed(answer) if self._calls and answer else answer)

    def end(self, is_cut: bool) -> Part:
        """Return the rest. `is_cut`: the text ended at its limit, so that a call in it may be incomplete."""
        thoughts, answer = self._thoughts.end() if self._thoughts else ("", "")
        if self._calls is None:
            return Part(thoughts, answer)
        shown = self._calls.feed(answer) if answer else ""
        rest, calls = self._calls.end()
        if not is_cut or calls:
            return Part(thoughts, shown + rest, calls)
        rest, calls = self._calls.end_cut()
        return Part(thoughts, shown + ("" if self._must_call else rest), calls, is_cut=True)


def make_reader(tools: Sequence[Tool] | None, is_single: bool, must_call: bool, is_constrained: bool) -> MessageReader:
    """Return the reader of a text for which the model may call one of the tools. Optional."""
    names = [tool.function.name for tool in tools] if tools else None
    return MessageReader(names, is_single, is_constrained or must_call, must_call)


def read_message(reader: MessageReader, text: str, is_cut: bool) -> Part:
    """Return the parts of a complete text."""
    first, rest = reader.feed(text), reader.end(is_cut)
    return Part(first.thoughts + rest.thoughts, first.content + rest.content, rest.calls, rest.is_cut)
