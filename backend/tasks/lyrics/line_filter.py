"""A filter that keeps the song lines of a model's response: no headings, list numbers, remarks or repeated lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

MAX_LINE_CHARS = 64  # a longer line is prose and is broken at a pause
_SECTION_NAMES = (
    r"(?:verse|pre-?chorus|chorus|bridge|intro|outro|refrain|hook|stanza|section|part|title|song|lyrics|line)"
)
_NUMBER = r"(?:\s*#?\s*(?:\d+|[ivx]+|one|two|three|four))?"
_LIST_MARK = re.compile(r"^(?:[#>*•–—-]+\s*|\(?\d{1,2}[.):]\s+|\s+)+")  # Markdown lists, quotations and headings
_HEADING = re.compile(rf"(?:the\s+)?{_SECTION_NAMES}{_NUMBER}(?:\s*\(.*\))?\s*[:.]?", re.IGNORECASE)
_HEADING_PREFIX = re.compile(rf"^{_SECTION_NAMES}{_NUMBER}\s*(?:\(.*?\))?\s*:\s+", re.IGNORECASE)
_REMARK = re.compile(r"^(?:sure|certainly|of course|okay|here(?:'s|’s| is| are)|this is)\b.*:$", re.IGNORECASE)
_PAUSE = re.compile(r"[,;:.!?…]+[\"'”’)]*\s+")
_QUOTES = {'"': '"', "“": "”", "«": "»", "„": "“"}


class LineFilter:
    """Takes streamed text and returns up to `wanted` song lines. `rejected` counts dropped lines by reason."""

    def __init__(self, wanted: int, earlier: Iterable[str]) -> None:
        """Create a filter. A line that equals one of `earlier`, apart from case and punctuation, is rejected."""
        self._wanted = wanted
        self._earlier = {_normalise(line) for line in earlier}
        self._partial = ""
        self.rejected: Counter[str] = Counter()
        self.kept = 0

    @property
    def is_full(self) -> bool:
        """Whether the wanted number of lines is reached."""
        return self.kept >= self._wanted

    def feed(self, piece: str) -> Iterator[str]:
        """Yield the lines that this piece completes."""
        *complete, self._partial = (self._partial + piece.replace("\r", "\n")).split("\n")
        for line in complete:
            yield from self._filter_line(line)

    def flush(self) -> Iterator[str]:
        """Yield the last line at the end of the text, where no line break follows."""
        line, self._partial = self._partial, ""
        yield from self._filter_line(line)

    def _filter_line(self, raw: str) -> Iterator[str]:
        rest = self._strip_marks(raw)
        while rest and not self.is_full:
            line, rest = _break_line(rest)
            normalised = _normalise(line)
            if not normalised:
                continue
            if normalised in self._earlier:
                self.rejected["repeated"] += 1
                continue
            self._earlier.add(normalised)
            self.kept += 1
            yield line

    def _strip_marks(self, raw: str) -> str:
        """Return a line without list marks, Markdown and quotation marks; empty for a heading or a remark."""
        bare = " ".join(raw.replace("**", "").replace("__", "").split())
        line = _LIST_MARK.sub("", bare).rstrip("*_ ")
        if not line:
            return ""
        if _is_in_brackets(line) or _HEADING.fullmatch(line) or _REMARK.match(line):
            self.rejected["heading"] += 1
            return ""
        line = _HEADING_PREFIX.sub("", line)
        if len(line) > 1 and _QUOTES.get(line[0]) == line[-1]:
            line = line[1:-1].strip()
        return line


def _is_in_brackets(line: str) -> bool:
    """Return whether one pair of brackets encloses the line, which "(Oh) my love (oh)" does not have."""
    opening, inner, closing = line[0], line[1:-1], line[-1]
    if opening + closing not in ("[]", "()", "{}", "<>"):
        return False
    return closing not in inner or 0 <= inner.find(opening) < inner.find(closing)


def _break_line(text: str) -> tuple[str, str]:
    """Return the first line of `text` and the rest, split near the middle: at a pause, else between two words."""
    if len(text) <= MAX_LINE_CHARS:
        return text, ""
    middle = len(text) / -(-len(text) // MAX_LINE_CHARS)  # the length of each part, for the fewest parts
    pauses = [pause.end() for pause in _PAUSE.finditer(text) if MAX_LINE_CHARS // 4 < pause.end() <= MAX_LINE_CHARS + 1]
    spaces = [index for index, letter in enumerate(text[: MAX_LINE_CHARS + 1]) if letter == " "]
    end = min(pauses or spaces or [MAX_LINE_CHARS], key=lambda index: abs(index - middle))
    return text[:end].strip(), text[end:].strip()


def _normalise(line: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", line.casefold()))
