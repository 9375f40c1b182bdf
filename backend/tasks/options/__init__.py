"""The options of each task: one strict pydantic model per task, and its JSON Schema for forms and /openapi.json.

The music task has two option models: `music` for the tune generator, `songs` for models that generate audio.
A field's description gives its default only if the schema's default is null; ranges and defaults are schema keywords.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from backend.common.config.strict_model import StrictModel, to_validation_error
from backend.common.types import JsonObject
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


def parse_options(task: str, options: Mapping[str, Any], default_max_tokens: int = 256) -> JsonObject:
    """Return a task's options, parsed, with all defaults. Raises Validation."""
    model = OPTIONS[task]
    configured = {"max_tokens": default_max_tokens} if _has_default_length(model) else {}
    try:
        parsed = model.model_validate({**configured, **options})
    except ValidationError as error:
        errors = [{**item, "loc": ("options", *item["loc"])} for item in error.errors()]
        raise to_validation_error(errors, model.model_fields) from error
    return parsed.model_dump(by_alias=True)


def _has_default_length(model: type[StrictModel]) -> bool:
    """Whether the default of `max_tokens` comes from the server's settings."""
    max_tokens = model.model_fields.get("max_tokens")
    return max_tokens is not None and max_tokens.default is not None


def fill_defaults(task: str, options: Mapping[str, Any]) -> JsonObject:
    """Return stored options, with the defaults of options that did not exist when the job was stored."""
    fields = OPTIONS[task].model_fields if task in OPTIONS else {}
    return {**{name: field.default for name, field in fields.items()}, **options}


@cache
def options_schema(task: str, default_max_tokens: int) -> JsonObject:
    """Return the JSON Schema of a task's options for `Model.options_schema`; empty for a task without options.

    The result is cached and shared, since many models in a list have the same schema: do not modify it.
    """
    if task not in OPTIONS:
        return {}
    schema = OPTIONS[task].model_json_schema()
    if _has_default_length(OPTIONS[task]):
        schema["properties"]["max_tokens"]["default"] = default_max_tokens
    return schema
