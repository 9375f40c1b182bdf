"""Which of a model's lines are lines of a song: its headings, numbers, remarks and repetitions are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

LONGEST = 64  # characters; what is longer is prose, and is broken where it pauses
_NAMES = r"(?:verse|pre-?chorus|chorus|bridge|intro|outro|refrain|hook|stanza|section|part|title|song|lyrics|line)"
_NUMBER = r"(?:\s*#?\s*(?:\d+|[ivx]+|one|two|three|four))?"
_MARKED = re.compile(r"^(?:[#>*•–—-]+\s*|\(?\d{1,2}[.):]\s+|\s+)+")  # lists, quotations, headings of Markdown
_HEADING = re.compile(rf"(?:the\s+)?{_NAMES}{_NUMBER}(?:\s*\(.*\))?\s*[:.]?", re.IGNORECASE)
_LED = re.compile(rf"^{_NAMES}{_NUMBER}\s*(?:\(.*?\))?\s*:\s+", re.IGNORECASE)
_REMARK = re.compile(r"^(?:sure|certainly|of course|okay|here(?:'s|’s| is| are)|this is)\b.*:$", re.IGNORECASE)
_PAUSE = re.compile(r"[,;:.!?…]+[\"'”’)]*\s+")
_QUOTES = {'"': '"', "“": "”", "«": "»", "„": "“"}


class Keeper:
    """Takes a text in pieces and gives the lines that are kept, up to `wanted`."""

    def __init__(self, wanted: int, earlier: Iterable[str]) -> None:
        """`earlier` are lines that need not be sung again: one that equals one of them is left out."""
        self._wanted = wanted
        self._earlier = {_plain(line) for line in earlier}
        self._open = ""
        self.left_out: Counter[str] = Counter()  # lines, by the reason
        self.kept = 0

    @property
    def full(self) -> bool:
        """Whether all lines are there."""
        return self.kept >= self._wanted

    def feed(self, piece: str) -> Iterator[str]:
        """The lines that are complete with this piece."""
        *whole, self._open = (self._open + piece.replace("\r", "\n")).split("\n")
        for line in whole:
            yield from self._lines(line)

    def rest(self) -> Iterator[str]:
        """What stands after the last line's end, when nothing follows any more."""
        line, self._open = self._open, ""
        yield from self._lines(line)

    def _lines(self, raw: str) -> Iterator[str]:
        words = self._words(raw)
        while words and not self.full:
            line, words = _broken(words)
            plain = _plain(line)
            if not plain:
                continue
            if plain in self._earlier:
                self.left_out["repeated"] += 1
                continue
            self._earlier.add(plain)
            self.kept += 1
            yield line

    def _words(self, raw: str) -> str:
        """The words of a line without what is no part of a song; empty where nothing is left."""
        bare = " ".join(raw.replace("**", "").replace("__", "").split())
        line = _MARKED.sub("", bare).rstrip("*_ ")
        if not line:
            return ""
        inner = line[1:-1] if line[0] + line[-1] in ("[]", "()", "{}", "<>") else line
        if inner is not line or _HEADING.fullmatch(inner) or _REMARK.match(line):
            self.left_out["heading"] += 1
            return ""
        line = _LED.sub("", line)
        if len(line) > 1 and _QUOTES.get(line[0]) == line[-1]:
            line = line[1:-1].strip()
        return line


def _broken(words: str) -> tuple[str, str]:
    """The first line of words, and the rest: at the pause nearest to a middle, else between two words."""
    if len(words) <= LONGEST:
        return words, ""
    middle = len(words) / -(-len(words) // LONGEST)  # of as many parts as there must be
    pauses = [pause.end() for pause in _PAUSE.finditer(words) if LONGEST // 4 < pause.end() <= LONGEST + 1]
    spaces = [place for place, letter in enumerate(words[: LONGEST + 1]) if letter == " "]
    end = min(pauses or spaces or [LONGEST], key=lambda place: abs(place - middle))
    return words[:end].strip(), words[end:].strip()


def _plain(line: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", line.casefold()))
