"""A stack of the matrix: a machine's hardware, driver and packages, and the check that they are judged right."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

Category = Literal["control", "windows", "visibility", "interpreter", "numbers", "receipt", "other"]
STAGE_LIMIT = 2  # stacks of a kind that the stage judges, where each starts its interpreters
CHEAP_KINDS = ("interpreter", "inventory", "receipt")  # the stage judges all of them


@dataclass(frozen=True)
class Stack:
    """A stack that is not an interpreter's: a machine's files, a scripted child, a job through the service.

    `check` gets an empty folder and raises AssertionError if the judgement is wrong. It may be a coroutine function.
    All run one after the other in one process, so that they can share fixed costs.
    """

    name: str
    category: Category
    check: Callable[[Path], None | Coroutine[Any, Any, None]]

    @property
    def mechanism(self) -> str:
        """The kind of the stack: its name up to the first hyphen."""
        return self.name.partition("-")[0]


class Named(Protocol):
    """What a case and a stack have in common."""

    @property
    def name(self) -> str: ...
    @property
    def mechanism(self) -> str: ...


def parameters(stacks: Sequence[Named]) -> list[Any]:
    """Return the stacks as parameters of a test, those beyond the limit of their kind marked `by_hand`."""
    marked, counts = [], Counter[str]()
    for stack in stacks:
        counts[stack.mechanism] += 1
        is_rare = counts[stack.mechanism] > STAGE_LIMIT and stack.mechanism not in CHEAP_KINDS
        marked.append(pytest.param(stack, marks=[pytest.mark.by_hand] if is_rare else [], id=stack.name))
    return marked


def collect(package: str, path: Iterable[str], name: str) -> list[Any]:
    """Return the joined lists `name` of all modules of a package that define it."""
    modules = [importlib.import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(path)]
    return [entry for module in modules for entry in getattr(module, name, [])]
