"""How English words sound: syllables and rhymes, by the Carnegie Mellon Pronouncing Dictionary (`data/LICENSE`)."""

from __future__ import annotations

import bisect
import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = ("english", "en", "en-gb", "en-us", "eng")
FILE = Path(__file__).parent / "data" / "english.txt.xz"
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*'?|'[^\W_]+")


@dataclass(frozen=True)
class Sound:
    """A pronunciation: its syllables, and its sounds from the last stressed vowel on, which rhymes are made of."""

    syllables: int
    rhyme: str


class English:
    """The dictionary, read anew for each song: its 2.6 MB are not worth keeping for the few that are asked for."""

    def __init__(self) -> None:
        self._lines = lzma.decompress(FILE.read_bytes()).split(b"\n")

    def sounds(self, word: str) -> Sequence[Sound]:
        """All pronunciations, the usual one first; none for a word that the dictionary has not."""
        key = word.encode() + b"\t"
        place = bisect.bisect_left(self._lines, key)
        if place == len(self._lines) or not self._lines[place].startswith(key):
            return ()
        found = (heard.partition(" ") for heard in self._lines[place].decode().split("\t")[1:])
        return [Sound(int(count), rhyme) for count, _, rhyme in found]

    def syllables(self, line: str) -> int | None:
        """Of a line as it is usually said; None if a word of it is not known."""
        heard = [self._of(word) for word in words(line)]
        return sum(sounds[0].syllables for sounds in heard) if heard and all(heard) else None

    def rhymes(self, line: str) -> frozenset[str]:
        """What the line's last word rhymes on, in any pronunciation; empty where that is not known."""
        last = words(line)[-1:]
        return frozenset(sound.rhyme for word in last for sound in self._of(word))

    def _of(self, word: str) -> Sequence[Sound]:
        return self.sounds(word) or self.sounds(word.strip("'"))


def words(line: str) -> list[str]:
    """The words of a line in small letters, the parts of one with hyphens each by themselves."""
    return _WORD.findall(line.casefold().replace("’", "'").replace("‘", "'"))
