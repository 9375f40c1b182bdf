"""The JSON Schemas of all options: forms and /openapi.json show them, so each option needs a description."""

from __future__ import annotations

from typing import Any

import pytest

from backend.tasks.options import OPTIONS, options_schema, parse_options
from backend.tasks.options.songs import song_options, song_schema
from backend.tasks.songs.model_kinds import KINDS

TASKS = [task for task in OPTIONS if task != "embeddings"]
FIELDS = [(task, name) for task in TASKS for name in OPTIONS[task].model_fields]


def schema_of(task: str, name: str) -> dict[str, Any]:
    field: dict[str, Any] = options_schema(task, 256)["properties"][name]
    return field


@pytest.mark.parametrize(("task", "name"), FIELDS)
def test_an_option_has_a_description_without_a_final_period(task: str, name: str) -> None:
    text = schema_of(task, name)["description"]
    assert text[0].isupper() or text.startswith(name), text
    assert not text.endswith(".") and "  " not in text and len(text) <= 140, text


@pytest.mark.parametrize(("task", "name"), FIELDS)
def test_an_option_that_is_null_unless_set_names_its_default(task: str, name: str) -> None:
    field = schema_of(task, name)
    if field["default"] is None:
        assert "default" in field["description"], field["description"]


@pytest.mark.parametrize(("task", "name"), FIELDS)
def test_a_number_has_limits_and_a_default_within_them(task: str, name: str) -> None:
    field = schema_of(task, name)
    branches = [branch for branch in field.get("anyOf", [field]) if branch.get("type") in ("integer", "number")]
    for branch in branches:
        low = branch.get("minimum", branch.get("exclusiveMinimum"))
        high = branch.get("maximum", branch.get("exclusiveMaximum"))
        assert low is not None and high is not None, f"{task}.{name} has no limits"
        assert field["default"] is None or low <= field["default"] <= high


@pytest.mark.parametrize("task", sorted(OPTIONS))
def test_the_defaults_of_a_schema_are_those_of_the_parser(task: str) -> None:
    parsed = parse_options(task, {}, 99)
    defaults = {name: field.get("default") for name, field in options_schema(task, 99).get("properties", {}).items()}
    assert parsed == defaults


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_song_model_s_schema_has_its_own_defaults_and_limit(kind: Any) -> None:
    properties = song_schema(kind)["properties"]
    assert set(properties) == kind.options
    options = song_options(kind, "a waltz", {})
    assert {name: options[name] for name in kind.defaults} == {
        name: properties[name]["default"] for name in kind.defaults
    }
    if kind.longest_s:
        assert properties["seconds"]["anyOf"][0]["maximum"] == kind.longest_s


def test_the_schema_of_one_model_does_not_change_another_s() -> None:
    first, second = song_schema(KINDS["AceStepPipeline"]), song_schema(KINDS["AudioLDM2Pipeline"])
    assert first["properties"]["seconds"]["default"] != second["properties"]["seconds"]["default"]
