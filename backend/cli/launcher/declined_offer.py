"""What the launcher remembers of an offer that the user declined."""

from __future__ import annotations

from pathlib import Path

NONE = "none"


def is_to_be_made(declined: Path, wanted: str | None) -> bool:
    """Return whether to make an offer. Remembers in the file `declined` that none is wanted, or forgets it.

    `wanted`: what the user named on the command line: a name, `auto`, `none`; None if nothing.
    """
    if wanted == NONE:
        declined.write_text("none\n", encoding="utf-8")
        return False
    if wanted is None and declined.exists():
        return False
    declined.unlink(missing_ok=True)
    return True
