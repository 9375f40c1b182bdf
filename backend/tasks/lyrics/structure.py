"""The structure of lyrics: their sections, and the syllables and rhyme of each line."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TypedDict

from backend.tasks.lyrics.pronunciation import LANGUAGE_NAMES, EnglishDictionary
from backend.tasks.lyrics.sections import Section, parse_sections

UNKNOWN = "?"  # in a rhyme scheme: a line whose last word is not in the dictionary


class LineStructure(TypedDict):
    """A line. Lines of a section whose last words rhyme share the letter `rhyme`. None: not in the dictionary."""

    text: str
    syllables: int | None
    rhyme: str | None


class SectionStructure(TypedDict):
    """A section. `rhyme_scheme` joins the letters of its lines; None for a language other than English."""

    kind: str
    label: str
    rhyme_scheme: str | None
    lines: list[LineStructure]


class LyricsStructure(TypedDict):
    """The structure of lyrics. `sounds` names the dictionary; None for a language other than English."""

    language: str
    sounds: str | None
    sections: list[SectionStructure]


def describe_lyrics(text: str, language: str) -> LyricsStructure:
    """Return the structure of a text with section labels. Syllables and rhymes are looked up for English only."""
    english = EnglishDictionary() if language.casefold() in LANGUAGE_NAMES else None
    source = "the Carnegie Mellon Pronouncing Dictionary" if english else None
    sections = [_describe_section(section, english) for section in parse_sections(text)]
    return {"language": language, "sounds": source, "sections": sections}


def _describe_section(section: Section, english: EnglishDictionary | None) -> SectionStructure:
    letters: list[str | None] = _rhyme_letters(section.lines, english) if english else [None] * len(section.lines)
    return {
        "kind": section.kind,
        "label": section.label,
        "rhyme_scheme": "".join(letter or UNKNOWN for letter in letters) if english else None,
        "lines": [
            {"text": line, "syllables": english.count_syllables(line) if english else None, "rhyme": letter}
            for line, letter in zip(section.lines, letters, strict=True)
        ],
    }


def _rhyme_letters(lines: list[str], english: EnglishDictionary) -> list[str | None]:
    """Return a letter for each line: the letter of the first line that it rhymes with, or else a new one."""
    groups: list[frozenset[str]] = []
    letters: list[str | None] = []
    for line in lines:
        ends = english.rhyme_sounds(line)
        group = next((number for number, others in enumerate(groups) if others & ends), len(groups))
        if ends and group == len(groups):
            groups.append(ends)
        letters.append(ascii_uppercase[group] if ends else None)
    return letters
