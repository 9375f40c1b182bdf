"""`python -m backend.tasks.lyrics.make_english_data cmudict.dict` writes `data/english.txt.xz`.

The source is the Carnegie Mellon Pronouncing Dictionary (https://github.com/cmusphinx/cmudict). Of each pronunciation
the number of its vowels is kept, and what rhymes: the sounds from the last stressed vowel on.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from backend.tasks.lyrics.english_sounds import FILE


def table(dictionary: Iterable[str]) -> bytes:
    """Lines `word TAB syllables rhyme TAB …`, the usual pronunciation first, in the order of the words' bytes."""
    words: dict[str, list[str]] = {}
    for line in dictionary:
        name, *sounds = line.partition("#")[0].split()
        heard = words.setdefault(re.sub(r"\(\d+\)$", "", name), [])
        if (one := _sounding(sounds)) not in heard:
            heard.append(one)
    return b"".join("\t".join([word, *words[word]]).encode() + b"\n" for word in sorted(words, key=str.encode))


def _sounding(sounds: list[str]) -> str:
    vowels = [place for place, sound in enumerate(sounds) if sound[-1].isdigit()]
    stressed = [place for place in vowels if sounds[place][-1] in "12"] or vowels or [0]
    return f"{len(vowels)} {' '.join(sound.rstrip('012') for sound in sounds[stressed[-1] :])}"


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as source:
        FILE.write_bytes(lzma.compress(table(source), preset=9 | lzma.PRESET_EXTREME))
