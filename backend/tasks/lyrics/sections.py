"""The sections of a song: which kinds there are, what a line names each, and a text read back into them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = ("verse", "pre-chorus", "chorus", "bridge", "intro", "outro")
REPEATED = ("pre-chorus", "chorus")  # sung with the same words each time
USUAL = ("verse", "chorus", "verse", "chorus")
LINES = 4
MOST_SECTIONS, MOST_LINES = 16, 16
TOKENS_PER_LINE = 32  # room for a line and for what is left out of it

_NAMED = re.compile(rf"\[({'|'.join(kind.capitalize() for kind in KINDS)})(?: \d+)?\]")


@dataclass(frozen=True)
class Section:
    """A part of a song: `label` is what its line in the text says between brackets."""

    kind: str
    label: str
    lines: list[str] = field(default_factory=list)


def labels(kinds: Sequence[str]) -> list[str]:
    """What each section is called: verses are numbered, others from the second on; a chorus is the same each time."""
    seen: Counter[str] = Counter()
    found = []
    for kind in kinds:
        seen[kind] += 1
        numbered = kind == "verse" or (seen[kind] > 1 and kind not in REPEATED)
        found.append(f"{kind.capitalize()} {seen[kind]}" if numbered else kind.capitalize())
    return found


def read(text: str) -> list[Section]:
    """The sections of a text that has a line naming each, as `writing.py` makes it."""
    found: list[Section] = []
    for line in text.split("\n"):
        if named := _NAMED.fullmatch(line):
            found.append(Section(named[1].lower(), line[1:-1]))
        elif line and found:
            found[-1].lines.append(line)
    return found
