"""Cards that an environment variable hides from a library."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step


def hidden(facts: Facts) -> Iterator[Finding]:
    """A card that an environment variable hides from a library."""
    for card in facts.hardware:
        if card.hidden_by:
            detail = f"{card.name}: {' '.join(card.hidden_by)}"
            step = Step("If that is not intended, unset the variable where the server is started.")
            yield Finding("hidden", "advice", "settings", card.id, detail, (step,))


FINDINGS = (hidden,)
