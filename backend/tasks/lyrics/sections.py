"""The sections of a song: their kinds and labels, and a parser for text with section labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = ("verse", "pre-chorus", "chorus", "bridge", "intro", "outro")
REPEATED = ("pre-chorus", "chorus")  # these have the same words each time
DEFAULT_SECTIONS = ("verse", "chorus", "verse", "chorus")
DEFAULT_LINES = 4
MAX_SECTIONS, MAX_LINES = 16, 16
TOKENS_PER_LINE = 32  # a token budget that includes rejected text

_NAMED = re.compile(rf"\[({'|'.join(kind.capitalize() for kind in KINDS)})(?: \d+)?\]")


@dataclass(frozen=True)
class Section:
    """A section of a song. `label` is the text between brackets in its heading, such as `Verse 1`."""

    kind: str
    label: str
    lines: list[str] = field(default_factory=list)


def section_labels(kinds: Sequence[str]) -> list[str]:
    """Return the label of each section. Verses are numbered, other kinds from the second on, choruses never."""
    counts: Counter[str] = Counter()
    names = []
    for kind in kinds:
        counts[kind] += 1
        numbered = kind == "verse" or (counts[kind] > 1 and kind not in REPEATED)
        names.append(f"{kind.capitalize()} {counts[kind]}" if numbered else kind.capitalize())
    return names


def parse_sections(text: str) -> list[Section]:
    """Parse a text with a label line before each section, as `generation.py` writes it."""
    sections: list[Section] = []
    for line in text.split("\n"):
        if heading := _NAMED.fullmatch(line):
            sections.append(Section(heading[1].lower(), line[1:-1]))
        elif line and sections:
            sections[-1].lines.append(line)
    return sections
