"""Which engines honour the options that a request sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.common.errors import UnsupportedParameter
from backend.engines import engines
from backend.tasks.options import OPTIONS
from backend.tasks.options.lyrics import SONG


def engines_honouring(task: str, options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of the engines `names` that honour all options that differ from their defaults."""
    return [name for name in names if not _ignored(task, options, name)]


def check_honoured(task: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises UnsupportedParameter if none of the engines `names` honours all that the options ask for."""
    names = list(names)
    if names and not engines_honouring(task, options, names):
        ignored = _ignored(task, options, names[0])
        raise UnsupportedParameter(
            f"{', '.join(ignored)}: the engine {names[0]} does not offer that.",
            "Leave it out, or choose another engine or model.",
            fields=[f"options.{name}" for name in ignored],
        )


def _ignored(task: str, options: Mapping[str, Any], engine: str) -> list[str]:
    honoured = engines()[engine].options
    if honoured is None or task not in OPTIONS:
        return []
    asked = [
        name for name, field in OPTIONS[task].model_fields.items() if options.get(name, field.default) != field.default
    ]
    return [name for name in asked if name not in (*honoured, *SONG)]  # a song is ours to see to, whatever the engine
