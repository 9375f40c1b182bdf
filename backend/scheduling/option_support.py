"""Option support: which engines honour the options that a request sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.common.errors import UnsupportedParameter
from backend.engines import engines
from backend.tasks.options import OPTIONS
from backend.tasks.options.lyrics import SONG_OPTIONS
from backend.tasks.options.text import LOAD_OPTIONS, PROMPT_OPTIONS
from backend.tasks.options.tools import is_required_call


def engines_honouring(task: str, options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the engines of `names` that honour all options which differ from their defaults."""
    return [name for name in names if not _ignored(task, options, name)]


def check_honoured(task: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises UnsupportedParameter if no engine of `names` honours all options which differ from their defaults."""
    names = list(names)
    if names and not engines_honouring(task, options, names):
        ignored = _ignored(task, options, names[0])
        if ignored == ["response_format"] and is_required_call(options):
            raise UnsupportedParameter(
                f"tool_choice: the engine {names[0]} cannot make the model call a tool.",
                "Set tool_choice to auto, or choose a model that the engine llama.cpp runs.",
                fields=["options.tool_choice"],
            )
        raise UnsupportedParameter(
            f"{', '.join(ignored)}: not supported by the engine {names[0]}.",
            "Leave it out, or choose another engine or model.",
            fields=[f"options.{name}" for name in ignored],
        )


def _ignored(task: str, options: Mapping[str, Any], engine: str) -> list[str]:
    honoured = engines()[engine].options
    if honoured is None or task not in OPTIONS:
        return []
    changed = [
        name for name, field in OPTIONS[task].model_fields.items() if options.get(name, field.default) != field.default
    ]
    planned = LOAD_OPTIONS if engines()[engine].plans_memory else ()
    known = (*honoured, *PROMPT_OPTIONS, *SONG_OPTIONS, *planned)  # the service itself honours those of a song
    return [name for name in changed if name not in known]
