"""Findings: one file per subject, found by listing. Each has `FINDINGS`, functions from facts to findings."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import LEVELS, Finding

Function = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """Return all findings, the most severe first. An exception in a function becomes a finding; the rest still run."""
    findings: list[Finding] = []
    for function in functions():
        try:
            findings += function(facts)
        except Exception as error:  # noqa: BLE001 (one faulty function must not hide the other findings)
            detail = f"{function.__name__} failed on these facts ({type(error).__name__}: {error})."
            findings.append(Finding("examination-failed", "advice", "system", "doctor", detail))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


@cache
def functions() -> tuple[Function, ...]:
    """Return the functions of all files, by file name."""
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(function for module in modules for function in module.FINDINGS)
