"""The table in the order in which it is searched, and the search."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache

from backend.common.known_errors import (
    amd,
    graphics,
    intel,
    interpreters,
    loaders,
    machine,
    nvidia,
    nvidia_tool,
    processes,
)
from backend.common.known_errors.known_error import Code, KnownError

# First what one message alone can mean, last what many messages have in common.
KNOWN_ERRORS: tuple[KnownError, ...] = (
    *processes.SIGNALS,
    *interpreters.KNOWN,
    *machine.LIMITS,
    *loaders.SPECIFIC,
    *nvidia_tool.KNOWN,
    *nvidia.KNOWN,
    *amd.KNOWN,
    *intel.KNOWN,
    *graphics.KNOWN,
    *machine.MEMORY,
    *loaders.GENERAL,
    *machine.FILES,
    *processes.ENDS,
)


@dataclass(frozen=True)
class Found:
    """A known error, and its match in a text."""

    error: KnownError
    match: re.Match[str]


def find(text: str, names: Container[str] | None = None) -> Found | None:
    """Return the first known error of the table that a text shows, or None. `names`: only these. Default: all."""
    for error, pattern in zip(KNOWN_ERRORS, _patterns(), strict=True):
        if (names is None or error.name in names) and (match := pattern.search(text)):
            return Found(error, match)
    return None


def code_of(text: str) -> Code | None:
    """Return the error code of the known error that a text shows; None if it shows none, or one without a code."""
    found = find(text)
    return found.error.code if found else None


def telling_line(lines: Sequence[str]) -> str | None:
    """Return the first line that shows a known error, joined with the lines that continue it. None if none does."""
    for index, line in enumerate(lines):
        if found := find(line):
            return " ".join(part.strip() for part in lines[index : index + found.error.lines])
    return None


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Compile at the first search: most child processes never search."""
    return tuple(re.compile(error.pattern, re.IGNORECASE) for error in KNOWN_ERRORS)
