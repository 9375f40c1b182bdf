"""A program that builds the dictionary: `python -m backend.tasks.lyrics.make_english_data cmudict.dict`.

It writes `data/english.txt.xz` from the Carnegie Mellon Pronouncing Dictionary (https://github.com/cmusphinx/cmudict).
For each pronunciation it stores the number of vowels and the rhyme: the phonemes from the last stressed vowel on.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from backend.tasks.lyrics.pronunciation import FILE


def build_table(dictionary: Iterable[str]) -> bytes:
    """Return lines `word TAB syllables rhyme TAB …`, the usual pronunciation first, sorted by the words' bytes."""
    pronunciations: dict[str, list[str]] = {}
    for line in dictionary:
        name, *sounds = line.partition("#")[0].split()
        known = pronunciations.setdefault(re.sub(r"\(\d+\)$", "", name), [])
        if (summary := _summarise_phonemes(sounds)) not in known:
            known.append(summary)
    return b"".join(
        "\t".join([word, *pronunciations[word]]).encode() + b"\n" for word in sorted(pronunciations, key=str.encode)
    )


def _summarise_phonemes(sounds: list[str]) -> str:
    vowels = [place for place, sound in enumerate(sounds) if sound[-1].isdigit()]
    stressed = [place for place in vowels if sounds[place][-1] in "12"] or vowels or [0]
    return f"{len(vowels)} {' '.join(sound.rstrip('012') for sound in sounds[stressed[-1] :])}"


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as source:
        FILE.write_bytes(lzma.compress(build_table(source), preset=9 | lzma.PRESET_EXTREME))
