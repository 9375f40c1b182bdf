"""The options of each task: one file a task, checked strictly, with the schema that forms are built from.

The task music has two: those of tunes, and `songs` for models that make sound itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from backend.common.config.strict_model import StrictModel, to_validation_error
from backend.tasks.options.embeddings import EmbeddingsOptions
from backend.tasks.options.lyrics import LyricsOptions
from backend.tasks.options.music import MusicOptions
from backend.tasks.options.onnx import OnnxOptions
from backend.tasks.options.songs import SongOptions
from backend.tasks.options.stems import StemsOptions
from backend.tasks.options.text import TextOptions
from backend.tasks.songs.model_kinds import SONGS

OPTIONS: dict[str, type[StrictModel]] = {
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
        raise to_validation_error(errors, kind.model_fields) from error
    return parsed.model_dump(by_alias=True)


def _has_usual_length(kind: type[StrictModel]) -> bool:
    """Whether its texts are as long as the settings say, unless the caller says it."""
    length = kind.model_fields.get("max_tokens")
    return length is not None and length.default is not None


def completed(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options, with those at their defaults that the version which stored them did not have."""
    known = OPTIONS[task].model_fields if task in OPTIONS else {}
    return {**{name: field.default for name, field in known.items()}, **options}


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
