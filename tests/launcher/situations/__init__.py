"""Situations in which a user starts Touchstone, and the exact messages.

`words` are matched line by line anywhere in the output; `…` is any text, {folder} the repository's folder.
docs/starts.md has the same tables; `python -m tests.launcher.situations` prints them.
"""

from __future__ import annotations

from tests.launcher.situations import environments, places, serving, starting, windows
from tests.launcher.situations.kinds import QUIET, WORKS, Situation

__all__ = ["SITUATIONS", "WORKS", "Situation", "table"]

SITUATIONS = tuple(
    situation for file in (starting, environments, places, windows, serving) for situation in file.SITUATIONS
)


def table() -> str:
    """Return the page's tables, part by part."""
    lines: list[str] = []
    for part in dict.fromkeys(situation.part for situation in SITUATIONS):
        lines += ["", f"## {part}", "| situation | message |", "|---|---|"]
        for situation in (one for one in SITUATIONS if one.part == part):
            said = [f"`{_shown(words)}`" for words in situation.words if words not in QUIET] or ["(it works)"]
            ends = f" (exit code {situation.code})" if situation.code else ""
            lines.append(f"| {situation.name} | {'<br>'.join(said)}{ends} |")
    return "\n".join(lines[1:]) + "\n"


def _shown(words: str) -> str:
    return words.replace("{folder}", "FOLDER").replace("|", "\\|").replace("`", "'").strip()
