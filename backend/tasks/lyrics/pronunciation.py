"""English syllables and rhymes from the Carnegie Mellon Pronouncing Dictionary (`data/LICENSE`)."""

from __future__ import annotations

import bisect
import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LANGUAGE_NAMES = ("english", "en", "en-gb", "en-us", "eng")
FILE = Path(__file__).parent / "data" / "english.txt.xz"
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*'?|'[^\W_]+")


@dataclass(frozen=True)
class Pronunciation:
    """A pronunciation: the number of syllables, and the phonemes from the last stressed vowel on, which must rhyme."""

    syllables: int
    rhyme: str


class EnglishDictionary:
    """The dictionary in memory. It is loaded for each song, since its 2.6 MB are rarely needed."""

    def __init__(self) -> None:
        self._lines = lzma.decompress(FILE.read_bytes()).split(b"\n")

    def pronunciations(self, word: str) -> Sequence[Pronunciation]:
        """Return all pronunciations of a word, the usual one first; empty for an unknown word."""
        key = word.encode() + b"\t"
        index = bisect.bisect_left(self._lines, key)
        if index == len(self._lines) or not self._lines[index].startswith(key):
            return ()
        entries = (entry.partition(" ") for entry in self._lines[index].decode().split("\t")[1:])
        return [Pronunciation(int(count), rhyme) for count, _, rhyme in entries]

    def count_syllables(self, line: str) -> int | None:
        """Return the number of syllables in a line by its words' usual pronunciations; None if a word is unknown."""
        candidates = [self._lookup(word) for word in split_words(line)]
        return sum(usual.syllables for usual, *_ in candidates) if candidates and all(candidates) else None

    def rhyme_sounds(self, line: str) -> frozenset[str]:
        """Return the rhyme sounds of the line's last word in all its pronunciations; empty for an unknown word."""
        last_word = split_words(line)[-1:]
        return frozenset(candidate.rhyme for word in last_word for candidate in self._lookup(word))

    def _lookup(self, word: str) -> Sequence[Pronunciation]:
        return self.pronunciations(word) or self.pronunciations(word.strip("'"))


def split_words(line: str) -> list[str]:
    """Return the words of a line in lower case. A word with hyphens is split into its parts."""
    return _WORD.findall(line.casefold().replace("’", "'").replace("‘", "'"))
