"""The options of each task: one file a task, checked strictly, with the schema that forms are built from.

The task music has two: those of tunes, and `songs` for models that make sound itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from backend.engines import engines
from backend.errors import UnsupportedParameter
from backend.options.embeddings import EmbeddingsOptions
from backend.options.lyrics import SONG, LyricsOptions
from backend.options.music import MusicOptions
from backend.options.onnx import OnnxOptions
from backend.options.songs import SongOptions
from backend.options.stems import StemsOptions
from backend.options.text import TextOptions
from backend.songs.kinds import SONGS
from backend.strict import Strict, explained

OPTIONS: dict[str, type[Strict]] = {
    "text": TextOptions,
    "lyrics": LyricsOptions,
    "music": MusicOptions,
    "onnx": OnnxOptions,
    "embeddings": EmbeddingsOptions,
    "stems": StemsOptions,
    SONGS: SongOptions,
}


def parse_options(task: str, options: Mapping[str, Any], default_max_tokens: int = 256) -> dict[str, Any]:
    """The options of a task with all defaults filled in. Raises Validation."""
    kind = OPTIONS[task]
    own = {"max_tokens": default_max_tokens} if _has_usual_length(kind) else {}
    try:
        parsed = kind.model_validate({**own, **options})
    except ValidationError as error:
        errors = [{**item, "loc": ("options", *item["loc"])} for item in error.errors()]
        raise explained(errors, kind.model_fields) from error
    return parsed.model_dump(by_alias=True)


def _has_usual_length(kind: type[Strict]) -> bool:
    """Whether its texts are as long as the settings say, unless the caller says it."""
    length = kind.model_fields.get("max_tokens")
    return length is not None and length.default is not None


def completed(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options, with those at their defaults that the version which stored them did not have."""
    known = OPTIONS[task].model_fields if task in OPTIONS else {}
    return {**{name: field.default for name, field in known.items()}, **options}


def honouring(task: str, options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of the engines `names` that honour all options that differ from their defaults."""
    return [name for name in names if not _ignored(task, options, name)]


def check_honoured(task: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises UnsupportedParameter if none of the engines `names` honours all that the options ask for."""
    names = list(names)
    if names and not honouring(task, options, names):
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


@cache
def options_schema(task: str, default_max_tokens: int) -> dict[str, Any]:
    """The JSON Schema of a task's options, for `Model.options_schema`; empty for tasks that take none.

    The same object each time, since a list of models has it many times over.
    """
    if task not in OPTIONS:
        return {}
    schema = OPTIONS[task].model_json_schema()
    if _has_usual_length(OPTIONS[task]):
        schema["properties"]["max_tokens"]["default"] = default_max_tokens
    return schema
