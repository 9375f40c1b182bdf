"""Model files that are broken, and the default model where it is not here yet."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step


def models(facts: Facts) -> Iterator[Finding]:
    """One finding a broken file, one for a default model that has to be fetched."""
    for model in facts.models:
        words = (model.reason or "", (Step(model.remedy),) if model.remedy else ())
        if model.state == "broken":
            yield Finding("model-broken", "broken", "model", f"model:{model.id}", *words)
        elif model.default and model.state == "downloadable":
            step = Step("Fetch it.", "python -m backend models fetch-default")
            yield Finding("model-missing", "advice", "model", f"model:{model.id}", words[0], (step,))


FINDINGS = (models,)
