"""Broken model files, and a default model that is missing."""

from __future__ import annotations

from collections.abc import Iterator

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import Finding, Step
from backend.common.commands import command


def models(facts: Facts) -> Iterator[Finding]:
    """A broken model file, or a default model that is not downloaded yet."""
    for model in facts.models:
        texts = (model.reason or "", (Step(model.remedy),) if model.remedy else ())
        if model.state == "broken":
            yield Finding("model-broken", "broken", "model", f"model:{model.id}", *texts)
        elif model.default and model.state == "downloadable":
            step = Step("Download it.", command("models fetch-default"))
            yield Finding("model-missing", "advice", "model", f"model:{model.id}", texts[0], (step,))


FINDINGS = (models,)
