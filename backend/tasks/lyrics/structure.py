"""A song's text as structure: its sections, and of each line the syllables and what it rhymes with."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from backend.tasks.lyrics.english_sounds import NAMES, English
from backend.tasks.lyrics.sections import Section, read

UNKNOWN = "?"  # in a scheme, a line whose last word is not in the dictionary


def described(text: str, language: str) -> dict[str, Any]:
    """`{language, sounds, sections: [{kind, label, rhyme_scheme, lines: [{text, syllables, rhyme}]}]}`.

    `rhyme` is a letter that lines of a section share whose last words rhyme, `rhyme_scheme` all of them. What cannot be
    looked up is None: a word that is not in the dictionary, and every language but English, as `sounds` says.
    """
    english = English() if language.casefold() in NAMES else None
    known = "the Carnegie Mellon Pronouncing Dictionary" if english else None
    sections = [_section(section, english) for section in read(text)]
    return {"language": language, "sounds": known, "sections": sections}


def _section(section: Section, english: English | None) -> dict[str, Any]:
    letters: list[str | None] = _letters(section.lines, english) if english else [None] * len(section.lines)
    return {
        "kind": section.kind,
        "label": section.label,
        "rhyme_scheme": "".join(letter or UNKNOWN for letter in letters) if english else None,
        "lines": [
            {"text": line, "syllables": english.syllables(line) if english else None, "rhyme": letter}
            for line, letter in zip(section.lines, letters, strict=True)
        ],
    }


def _letters(lines: list[str], english: English) -> list[str | None]:
    """A letter for each line: that of the first line before it that it rhymes with, else the next new one."""
    groups: list[frozenset[str]] = []
    found: list[str | None] = []
    for line in lines:
        ends = english.rhymes(line)
        group = next((number for number, others in enumerate(groups) if others & ends), len(groups))
        if ends and group == len(groups):
            groups.append(ends)
        found.append(ascii_uppercase[group] if ends else None)
    return found
