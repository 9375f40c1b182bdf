"""A stack of the matrix: a machine's hardware, driver and packages, and the check that they are judged right."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Category = Literal["control", "windows", "visibility", "interpreter", "numbers", "receipt", "other"]


@dataclass(frozen=True)
class Stack:
    """A stack that is not an interpreter's: a machine's files, a scripted child, a job through the service.

    `check` gets an empty folder and raises AssertionError if the judgement is wrong. It may be a coroutine function.
    Stacks of one module run one after the other in one process, so that they can share fixed costs.
    """

    name: str
    category: Category
    check: Callable[[Path], None | Coroutine[Any, Any, None]]


def collect(package: str, path: Iterable[str], name: str) -> list[Any]:
    """Return the joined lists `name` of all modules of a package that define it."""
    modules = [importlib.import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(path)]
    return [entry for module in modules for entry in getattr(module, name, [])]
