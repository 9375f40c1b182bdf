"""Findings: one file a subject, found by listing. Each has `FINDINGS`, functions from facts to what they show."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache

from backend.cli.doctor.facts import Facts
from backend.cli.doctor.finding import LEVELS, Finding

Function = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """All findings, the gravest first. A function that fails is a finding itself, and keeps no other from speaking."""
    found: list[Finding] = []
    for function in functions():
        try:
            found += function(facts)
        except Exception as error:  # noqa: BLE001 (a doctor that dies of its patient helps nobody)
            detail = f"{function.__name__} could not judge what it was given ({type(error).__name__}: {error})."
            found.append(Finding("examination-failed", "advice", "system", "doctor", detail))
    return sorted(found, key=lambda one: LEVELS.index(one.level))


@cache
def functions() -> tuple[Function, ...]:
    """The functions of all files, in the files' order."""
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(function for module in modules for function in module.FINDINGS)
