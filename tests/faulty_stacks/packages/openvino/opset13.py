"""Operations that are put into a graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def parameter(shape: list[int], dtype: Any, name: str) -> Any:
    """An input."""
    return SimpleNamespace(name=name, output=lambda index: SimpleNamespace(set_names=lambda names: None))


def gather(data: Any, indices: Any, axis: Any) -> Any:
    """Some of the values."""
    return SimpleNamespace(output=lambda index: None)


def constant(value: Any) -> Any:
    """A number."""
    return SimpleNamespace(output=lambda index: value)
