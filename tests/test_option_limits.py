"""The limits of every option: the last value that is allowed, the first that is not, and inputs of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from backend.common.errors import Validation
from backend.common.seeds import SEEDS
from backend.tasks.options import fill_defaults, options_schema, parse_options
from backend.tasks.options.inputs import VALUE_LIMIT, check_inputs
from backend.tasks.options.music_prompt import PROMPT_LIMIT, apply_prompt


def accepted(task: str, name: str, value: Any) -> bool:
    """Return whether a task takes this value. A refusal must name the option and what to do."""
    try:
        parse_options(task, {name: value})
    except Validation as refused:
        assert name in refused.detail and refused.remedy
        assert any(field.startswith("options") for field in refused.extra["fields"])
        return False
    return True


NAN, INFINITY = float("nan"), float("inf")
LIMITS: list[tuple[str, str, list[Any], list[Any]]] = [
    ("text", "max_tokens", [1, 1_000_000], [0, 1_000_001, 1.5, "10", None, True]),
    ("text", "temperature", [0, 2, 1.25], [-0.01, 2.01, NAN, INFINITY, "1"]),
    ("text", "top_p", [0.0001, 1], [0, 1.0001, NAN]),
    ("text", "top_k", [0, 1_000_000], [-1, 1_000_001, 0.5]),
    ("text", "seed", [0, SEEDS - 1, None], [-1, SEEDS, 1.5]),
    ("text", "repetition_penalty", [0.01, 2], [0, 2.1, NAN]),
    ("text", "presence_penalty", [-2, 2], [-2.1, 2.1, INFINITY]),
    ("text", "frequency_penalty", [-2, 2], [-2.1, 2.1, -INFINITY]),
    ("text", "logprobs", [0, 20, None], [-1, 21]),
    ("text", "stop", ["a", ["a"] * 16, [], None], ["", [""], ["a"] * 17, [1], {"a": "b"}, 5]),
    (
        "text",
        "logit_bias",
        [{}, None, {"0": -100, "4999999999": 100.0}, {str(token): 1 for token in range(1024)}],
        [{"-1": 1}, {"01": 1}, {"a": 1}, {"1.0": 1}, {"1": 101}, {"1": NAN}, {str(token): 1 for token in range(1025)}],
    ),
    ("text", "raw", [True, False], [1, "true", None]),
    (
        "text",
        "tools",
        [None, [], [{"type": "function", "function": {"name": "a.b-c_D9", "parameters": {"type": "object"}}}]],
        [
            [{"type": "function", "function": {"name": ""}}],
            [{"type": "function", "function": {"name": "a b"}}],
            [{"type": "function", "function": {"name": "x" * 129}}],
            [{"type": "retrieval", "function": {"name": "a"}}],
            [{"type": "function"}],
            [{"type": "function", "function": {"name": "a"}}] * 129,
        ],
    ),
    ("lyrics", "lines_per_section", [1, 16], [0, 17]),
    ("lyrics", "sections", [["verse"], ["Pre Chorus", "PRE_CHORUS", " outro "], ["verse"] * 16], [[], ["verse"] * 17]),
    ("lyrics", "sections", [["intro"]], [["solo"], "verse", [1], None]),
    ("lyrics", "theme", [None, "x" * 500], ["", "  ", "x" * 501]),
    ("lyrics", "language", ["x" * 50], ["x" * 51, None]),
    ("lyrics", "max_tokens", [None, 1], [0]),
    ("music", "bars", [1, 256, None], [0, 257]),
    ("music", "seconds", [0.5, 600], [0, 600.5, NAN]),
    ("music", "tempo_bpm", [30, 300], [29.9, 300.1]),
    ("music", "variations", [1, 16], [0, 17]),
    ("music", "formats", [["wav"], ["midi", "svg"], None], [[], ["exe"], "wav"]),
    ("music", "form", ["any", "Slip-Jig", "slip_jig"], ["polka", None, 5]),
    ("music", "key", ["F♯", "b♭", "Cb"], ["H", "E#"]),
    ("music", "abc", ["x" * 5000], ["x" * 5001]),
    ("songs", "seconds", [0.1, 1200], [0, 1200.5, INFINITY]),
    ("songs", "guidance_scale", [0, 50], [-1, 51]),
    ("songs", "steps", [1, 1000], [0, 1001]),
    ("songs", "language", ["en", "yue"], ["e", "EN", "en-GB", ""]),
    ("songs", "meter", ["6/8"], ["7/8"]),
    ("songs", "tempo_bpm", [30, 300], [29, 301, 100.5]),
    ("songs", "lyrics", ["x" * 20_000], ["x" * 20_001]),
    ("stems", "stems", [["vocals"], None], [[], ["guitar"], "vocals"]),
    ("stems", "format", ["wav", "flac", "wav-float"], ["mp3", None]),
    ("onnx", "runs", [1, 10_000], [0, 10_001]),
    ("onnx", "dimensions", [{"n": 1, "m": 1_000_000}, {}], [{"n": 0}, {"n": 1_000_001}, {"n": "1"}]),
    ("onnx", "action", ["run", "check", "bench", "inspect"], ["train"]),
    ("embeddings", "dimensions", [], [256]),
]


@pytest.mark.parametrize(("task", "name", "good", "bad"), LIMITS)
def test_an_option_takes_its_limits_and_nothing_beyond(task: str, name: str, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not accepted(task, name, value)] == []
    assert [value for value in bad if accepted(task, name, value)] == []


@pytest.mark.parametrize("task", ["text", "lyrics", "music", "stems", "onnx", "embeddings", "songs"])
def test_an_unknown_option_is_rejected_by_name(task: str) -> None:
    assert not accepted(task, "temprature", 1)


# Values that are normalised


def test_one_stop_sequence_is_a_list_of_one_and_an_empty_bias_is_none() -> None:
    options = parse_options("text", {"stop": "END", "logit_bias": {}, "response_format": {"type": "text"}})
    assert options["stop"] == ["END"] and options["logit_bias"] is None and options["response_format"] is None


def test_choices_and_sections_get_their_standard_spelling() -> None:
    music = parse_options("music", {"form": "SLIP JIG", "key": "b♭", "instrument": "church_organ"})
    assert (music["form"], music["key"], music["instrument"]) == ("slip jig", "Bb", "church-organ")
    assert parse_options("lyrics", {"sections": ["Pre Chorus", "BRIDGE"]})["sections"] == ["pre-chorus", "bridge"]


def test_a_misspelled_choice_gets_the_nearest_one() -> None:
    with pytest.raises(Validation, match="did you mean 'hornpipe'"):
        parse_options("music", {"form": "hornpip"})
    with pytest.raises(Validation) as refused:
        parse_options("music", {"form": "zzzz"})
    assert "did you mean" not in refused.value.detail and "strathspey" in refused.value.detail


def test_bars_and_seconds_exclude_each_other() -> None:
    with pytest.raises(Validation, match="mutually exclusive"):
        parse_options("music", {"bars": 8, "seconds": 10})


def test_the_default_length_of_a_text_is_the_server_s_and_an_option_wins() -> None:
    assert parse_options("text", {}, 77)["max_tokens"] == 77
    assert parse_options("text", {"max_tokens": 5}, 77)["max_tokens"] == 5
    assert parse_options("lyrics", {}, 77)["max_tokens"] is None, "a song's length depends on its sections"
    assert options_schema("text", 77)["properties"]["max_tokens"]["default"] == 77
    assert options_schema("unknown", 77) == {}


def test_a_stored_job_gets_the_defaults_of_options_that_came_later_and_keeps_its_own() -> None:
    filled = fill_defaults("text", {"temperature": 0.1, "removed_option": 1})
    assert filled["temperature"] == 0.1 and filled["top_k"] == 40 and filled["removed_option"] == 1
    assert fill_defaults("unknown", {"a": 1}) == {"a": 1}


# Response formats


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, True),
        ({"type": "json_schema", "json_schema": {"name": "a-b_C9"}}, True),
        ({"type": "json_schema"}, False),
        ({"type": "json_object", "json_schema": {"schema": {}}}, False),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, False),
        ({"type": "json_schema", "json_schema": {"schema_": {}}}, False),
        ({"type": "xml"}, False),
    ],
)
def test_a_response_format_has_a_schema_exactly_where_its_type_needs_one(value: Any, good: bool) -> None:
    assert accepted("text", "response_format", value) is good


def with_schema(schema: dict[str, Any]) -> bool:
    return accepted("text", "response_format", {"type": "json_schema", "json_schema": {"schema": schema}})


def test_a_schema_is_limited_by_the_items_that_its_grammar_would_repeat() -> None:
    array = {"type": "array", "minItems": 50_000, "maxItems": 50_000}
    assert with_schema(array)
    assert not with_schema({**array, "minItems": 50_001})
    assert not with_schema({"properties": {"a": array, "b": {"type": "array", "maxItems": 1}}})
    assert with_schema({"type": "array", "maxItems": -5, "minItems": "many"})
    assert not with_schema({"maxItems": 1e308})


def test_a_schema_is_limited_by_its_parts_however_they_are_nested() -> None:
    assert with_schema({"enum": [0] * 19_998}), "20,000 with the list and the schema itself"
    assert not with_schema({"enum": [0] * 19_999})
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    assert with_schema(deep)


# Inputs


def refusal(task: str, inputs: Any) -> Validation:
    with pytest.raises(Validation) as refused:
        check_inputs(task, inputs)
    return refused.value


def test_a_task_without_files_takes_none() -> None:
    check_inputs("text", None)
    check_inputs("text", {})
    assert "a text job takes no files" in refusal("text", {"a": "id"}).detail


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (None, "inputs.audio is missing"),
        ({"audio": "id", "voice": "id"}, "inputs.voice is unknown"),
        ({"audio": 5}, "inputs.audio should be the id of a file."),
        ({"audio": [1]}, "inputs.audio should be the id of a file."),
    ],
)
def test_a_task_with_files_takes_exactly_its_own(inputs: Any, problem: str) -> None:
    assert problem in refusal("stems", inputs).detail
    check_inputs("stems", {"audio": "id"})


def test_a_graph_takes_ids_numbers_and_nested_arrays() -> None:
    check_inputs("onnx", {"a": "id", "b": 1.5, "c": [[1, 2.0], ["text", []]], "d": []})
    assert "or an array" in refusal("onnx", {"a": {"b": 1}}).detail


@pytest.mark.parametrize("odd", [None, NAN, INFINITY, {}])
def test_a_nested_value_that_is_neither_a_number_nor_a_text_is_named(odd: Any) -> None:
    refused = refusal("onnx", {"a": [1, [2, odd]]})
    assert refused.extra == {"fields": ["inputs.a"]} and "neither a number nor a text" in refused.detail


def test_the_values_of_all_arrays_together_are_limited() -> None:
    check_inputs("onnx", {"a": [0] * (VALUE_LIMIT - 1), "b": 1})
    assert f"{VALUE_LIMIT + 1} array values" in refusal("onnx", {"a": [0] * VALUE_LIMIT, "b": 1}).detail


def test_an_array_of_any_depth_is_counted_without_recursion() -> None:
    deep: list[Any] = [1]
    for _ in range(50_000):
        deep = [deep]
    check_inputs("onnx", {"a": deep})


# Prompts of tunes


def test_an_explicit_option_wins_over_the_prompt_and_the_prompt_over_the_default() -> None:
    options, parsed = apply_prompt("a jig in G, 16 bars", {"bars": 8})
    assert (options["form"], options["key"], options["bars"]) == ("jig", "G", 8)
    assert parsed is not None and [entry["reason"] for entry in parsed.ignored] == ["the option bars is set"]
    assert apply_prompt(None, {})[1] is None


def test_a_prompt_of_a_tune_is_limited_since_the_server_parses_it() -> None:
    apply_prompt("a" * PROMPT_LIMIT, {})
    with pytest.raises(Validation, match=f"the limit is {PROMPT_LIMIT}"):
        apply_prompt("a" * (PROMPT_LIMIT + 1), {})


def test_what_a_prompt_sets_must_fit_together() -> None:
    with pytest.raises(Validation):
        apply_prompt("a jig in 9/8", {})
