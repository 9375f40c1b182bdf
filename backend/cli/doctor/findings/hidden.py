"""Cards that a variable hides from some library."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step


def hidden(facts: Facts) -> Iterator[Finding]:
    """One finding a card, with the sentences that say which variable hides it from whom."""
    for card in facts.hardware:
        if card.hidden_by:
            detail = f"{card.name}: {' '.join(card.hidden_by)}"
            step = Step("Unset the variable where the server is started, if that was not meant.")
            yield Finding("hidden", "advice", "settings", card.id, detail, (step,))


FINDINGS = (hidden,)
