"""Situations in which somebody starts Touchstone, and the exact words that they then see.

`words` are matched line by line, anywhere in what is printed; `…` stands for any text, {folder} for the repository's.
docs/starts.md is the same table for people; `python -m tests.launcher.situations` prints it.
"""

from __future__ import annotations

from tests.launcher.situations import environments, places, serving, starting, windows
from tests.launcher.situations.kinds import QUIET, WORKS, Situation

__all__ = ["SITUATIONS", "WORKS", "Situation", "table"]

SITUATIONS = tuple(
    situation for file in (starting, environments, places, windows, serving) for situation in file.SITUATIONS
)


def table() -> str:
    """The page's table, part by part."""
    lines: list[str] = []
    for part in dict.fromkeys(situation.part for situation in SITUATIONS):
        lines += ["", f"## {part}", "| situation | what is said |", "|---|---|"]
        for situation in (one for one in SITUATIONS if one.part == part):
            said = [f"`{_shown(words)}`" for words in situation.words if words not in QUIET] or ["(it works)"]
            ends = f" (exit code {situation.code})" if situation.code else ""
            lines.append(f"| {situation.name} | {'<br>'.join(said)}{ends} |")
    return "\n".join(lines[1:]) + "\n"


def _shown(words: str) -> str:
    return words.replace("{folder}", "FOLDER").replace("|", "\\|").replace("`", "'").strip()
