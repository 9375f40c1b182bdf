"""The marks around what a model thinks before it answers, and their separation from the answer while it streams."""

from __future__ import annotations

from collections.abc import Iterable

# Opening and closing marks: of Qwen, DeepSeek and most others, then Magistral, Command A, Kimi, Seed and Apertus.
MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
_HELD = 64  # characters that may be the beginning of a closing mark, with the line ends before it
PHASE = "thinking"  # of a `progress` event before the first token: the prompt ends after an opening mark


def find_open_mark(prompt: str) -> str | None:
    """Return the opening mark that a prompt ends with: the model's text then begins with thoughts. Default: None."""
    end = prompt[-64:].rstrip()
    return next((opening for opening, _ in MARKS if end.endswith(opening)), None)


class ReasoningParser:
    """Separates thoughts from the answer.

    Thoughts are what stands between the marks at the start of the text. `is_open`: the prompt has the opening mark.
    """

    def __init__(self, is_open: bool = False) -> None:
        self._closings: tuple[str, ...] | None = tuple(closing for _, closing in MARKS) if is_open else None
        self._is_done = False
        self._held = ""
        self._strips = is_open

    def feed(self, piece: str) -> tuple[str, str]:
        """Add a piece of text. Returns the thoughts and the answer that it completes."""
        if self._is_done:
            return "", self._shown(piece)
        self._held += piece
        if self._closings is None and not self._open():
            return "", self._shown(self._release()) if self._is_done else ""
        return self._split()

    def end(self) -> tuple[str, str]:
        """Return the thoughts and the answer that were held back, at the end of the text."""
        held, self._held = self._held, ""
        return (held, "") if self._closings is not None and not self._is_done else ("", held)

    def _open(self) -> bool:
        """Look for an opening mark at the start. Returns whether it is there; sets `_is_done` if it cannot come."""
        text = self._held.lstrip()
        for opening, closing in MARKS:
            if text.startswith(opening):
                self._closings, self._held, self._strips = (closing,), text[len(opening) :], True
                return True
        self._is_done = not _may_begin(text, (opening for opening, _ in MARKS))
        return False

    def _split(self) -> tuple[str, str]:
        assert self._closings is not None
        if self._strips:  # the line end after the opening mark
            self._held = self._held.lstrip("\n")
            self._strips = not self._held
        found = [(at, mark) for mark in self._closings if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            thoughts, answer = self._held[:at].rstrip("\n"), self._held[at + len(mark) :]
            self._held, self._is_done, self._strips = "", True, True
            return thoughts, self._shown(answer)
        size = len(self._held)
        ends = range(max(0, size - _HELD), size)
        kept = next((at for at in ends if _may_begin(self._held[at:].lstrip("\n"), self._closings)), size)
        thoughts, self._held = self._held[:kept], self._held[kept:]
        return thoughts, ""

    def _shown(self, answer: str) -> str:
        """Return a piece of the answer without the empty lines that follow the closing mark."""
        if self._strips:
            answer = answer.lstrip("\n")
            self._strips = not answer
        return answer

    def _release(self) -> str:
        held, self._held = self._held, ""
        return held


def split_reasoning(text: str, is_open: bool) -> tuple[str, str]:
    """Return the thoughts and the answer of a complete text."""
    parser = ReasoningParser(is_open)
    pairs = [parser.feed(text), parser.end()]
    return "".join(thoughts for thoughts, _ in pairs), "".join(answer for _, answer in pairs)


def _may_begin(text: str, marks: Iterable[str]) -> bool:
    """Return whether a text, of which more may come, may be the beginning of a mark."""
    return any(mark.startswith(text) for mark in marks)
