"""The text options with a real model: penalties, biases, log probabilities, JSON, raw prompts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from backend.common.errors import UnsupportedParameter
from backend.engines import engines
from backend.scheduling.option_support import check_honoured, engines_honouring
from backend.server.v1.chat import _options as chat_options
from backend.server.v1.request_models import ChatBody
from backend.tasks.options import parse_options
from backend.tasks.options.response_format import JsonSchema
from backend.tasks.options.tools import Tool
from tests.refusals import refused
from tests.service import Server, stream_events, text_of

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 1000}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def text(server: Server, prompt: str = "Tell me about your town in JSON.", **options: Any) -> str:
    job = server.generate(prompt=prompt, options={"max_tokens": 24, "temperature": 0, **options})
    assert job["status"] == "done", job
    return str(job["output"]["text"])


def held_to(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_takes_repetition_out_and_a_negative_one_brings_it(server: Server, penalty: str) -> None:
    prompt = "Repeat: yes yes yes yes yes"
    plain, less, more = (text(server, prompt, raw=True, **{penalty: value}) for value in (0, 2, -2))
    assert len(set(less.split())) > len(set(plain.split())) >= len(set(more.split()))


def test_a_bias_of_100_chooses_the_token_and_of_minus_100_bans_it(server: Server) -> None:
    assert text(server, logit_bias={"17": 100}, max_tokens=3) == "!!!"
    first = listing(server, max_tokens=1)[0]
    assert listing(server, max_tokens=1, logit_bias={str(first["id"]): -100})[0]["token"] != first["token"]


def listing(server: Server, **options: Any) -> list[dict[str, Any]]:
    """Return the log probabilities of the token events."""
    body = {"prompt": "Tell me about your town.", "options": {"temperature": 0, "logprobs": 3, **options}}
    events = list(stream_events(server, body))
    assert events[-1].event == "done", events[-1]
    found = [token for event in events if event.event == "token" for token in event.data["logprobs"]]
    assert "".join(token["token"] for token in found) == text_of(events) or "stop" in options
    return found


def test_log_probabilities_come_for_every_token_with_the_likeliest_others(server: Server) -> None:
    tokens = listing(server, max_tokens=12)
    assert len(tokens) == 12
    for token in tokens:
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == 3
        best = token["top_logprobs"][0]
        assert (best["token"], best["logprob"]) == (token["token"], token["logprob"]), "the likeliest one was taken"
        assert sum(math.exp(other["logprob"]) for other in token["top_logprobs"]) <= 1.0001
    assert all(not token["top_logprobs"] for token in listing(server, max_tokens=2, logprobs=0))


def test_log_probabilities_end_where_a_stop_cuts_the_text(server: Server) -> None:
    tokens = listing(server, max_tokens=12)
    stop = "".join(token["token"] for token in tokens[4:6])
    cut = listing(server, max_tokens=12, stop=stop)
    assert [token["token"] for token in cut] == [token["token"] for token in tokens[:4]]


def test_without_being_asked_for_no_log_probabilities_are_sent(server: Server) -> None:
    events = list(stream_events(server, {"prompt": "x", "options": {"max_tokens": 2}}))
    assert all("logprobs" not in event.data for event in events)


def test_a_schema_holds_the_text_to_it(server: Server) -> None:
    found = json.loads(text(server, response_format=held_to(CITY), max_tokens=60))
    jsonschema.validate(found, CITY)
    hot = json.loads(text(server, response_format=held_to(CITY), max_tokens=60, temperature=1.8, seed=3))
    jsonschema.validate(hot, CITY)


@pytest.mark.parametrize(
    "asked", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "any"}}], ids=["object", "any"]
)
def test_json_of_no_schema_is_a_json_object(server: Server, asked: dict[str, Any]) -> None:
    found = text(server, response_format=asked, max_tokens=12)
    assert found.startswith("{"), "it may be cut, but it is one"


@pytest.mark.parametrize(
    ("schema", "code", "words"),
    [
        ({"type": "nonsense"}, "validation_error", "nonsense"),
        ({"not": {"type": "string"}}, "unsupported_parameter", "not"),
        ({"type": "array", "uniqueItems": True}, "unsupported_parameter", "uniqueItems"),
        ({"type": "string", "pattern": "a("}, "validation_error", "regex"),
        ({"$ref": "#/nowhere"}, "validation_error", "nowhere"),
        ({"$ref": "https://example.com/schema"}, "validation_error", "example.com"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_and_never_dropped(
    server: Server, schema: dict[str, Any], code: str, words: str
) -> None:
    body = {"prompt": "x", "options": {"response_format": held_to(schema)}}
    problem = refused(server.http.post("/api/generate", json=body), 422, code)
    assert words in problem["detail"] and "response_format" in problem["detail"]


def test_a_raw_prompt_is_continued_without_the_chat_template(server: Server) -> None:
    prompt = "One, two, three, four,"
    raw = server.generate(prompt=prompt, options={"raw": True, "max_tokens": 4, "temperature": 0})
    said = server.generate(prompt=prompt, options={"max_tokens": 4, "temperature": 0})
    assert "five" in raw["output"]["text"]
    assert (raw["receipt"]["chat_template"], said["receipt"]["chat_template"]) == (None, "model")
    assert raw["receipt"]["counts"]["prompt_tokens"] < said["receipt"]["counts"]["prompt_tokens"]


def test_messages_cannot_be_raw(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "options": {"raw": True}}
    problem = refused(server.http.post("/api/generate", json=body), 422, "validation_error")
    assert "options.raw" in problem["detail"]


def test_an_option_that_no_engine_of_the_model_honours_is_refused_by_name() -> None:
    options = parse_options("text", {"logprobs": 2, "temperature": 0}, 8)
    lame = replace(engines()["llama.cpp"], name="lame", options=frozenset({"temperature", "max_tokens"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engines(), "lame", lame)
        with pytest.raises(UnsupportedParameter) as refusal:
            check_honoured("text", options, ["lame"])
        assert engines_honouring("text", options, ["lame", "llama.cpp"]) == ["llama.cpp"]
    assert (refusal.value.detail.split(":")[0], refusal.value.extra) == ("logprobs", {"fields": ["options.logprobs"]})
    check_honoured("text", options, ["llama.cpp"])


@pytest.mark.parametrize("engine", ["transformers", "openvino-genai"])
def test_a_required_tool_call_is_refused_by_the_key_that_was_sent(engine: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": "m", "tool_choice": "required"}
    tools = [{"type": "function", "function": {"name": "found"}}]
    options = parse_options("text", chat_options(ChatBody.model_validate({**body, "tools": tools})))
    with pytest.raises(UnsupportedParameter) as refusal:
        check_honoured("text", options, [engine])
    assert refusal.value.detail == f"tool_choice: the engine {engine} cannot make the model call a tool."
    assert refusal.value.extra == {"fields": ["options.tool_choice"]} and "llama.cpp" in refusal.value.remedy
    free = parse_options("text", chat_options(ChatBody.model_validate({**body, "tools": tools, "tool_choice": "auto"})))
    check_honoured("text", free, [engine])
    own = {"response_format": held_to(CITY)}
    with pytest.raises(UnsupportedParameter, match="response_format: not supported"):
        check_honoured("text", parse_options("text", own), [engine])


def test_a_bias_for_a_token_that_the_model_does_not_have_is_refused(server: Server) -> None:
    body = {"prompt": "x", "options": {"logit_bias": {"49151": 1, "49152": 1}}}
    problem = refused(server.http.post("/api/generate", json=body), 422, "validation_error")
    assert "49152" in problem["detail"] and "49151" in problem["detail"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "maxItems": 10**9},
        {"type": "array", "minItems": 1e300},
        {"type": "array", "minItems": float("inf")},
        {"properties": {"a": {"anyOf": [{"minItems": 60_000}, {"maxItems": 60_000}]}}},
    ],
)
def test_a_schema_whose_grammar_would_take_all_memory_is_refused(schema: dict[str, Any]) -> None:
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for asked in (lambda: JsonSchema.model_validate({"schema": schema}), lambda: Tool.model_validate(function)):
        with pytest.raises(ValueError, match="add up to more than 100000"):
            asked()
    with pytest.raises(ValueError, match="more than 20000 parts"):
        JsonSchema.model_validate({"schema": {"properties": {f"k{number}": {} for number in range(20_000)}}})
    JsonSchema.model_validate({"schema": {"type": "array", "maxItems": 100_000, "minItems": float("nan")}})
