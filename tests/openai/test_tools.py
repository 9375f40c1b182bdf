"""Tool calls: forced, parsed from the model's output, passed back, and rejected if the template has no tools."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from backend.server.v1.tool_calls import Call, ToolCallParser, parse
from tests.openai.asking import HELLO, chat_body, chunks, post
from tests.service import Server

PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": PLACE}}
TIME = {"type": "function", "function": {"name": "time"}}
NAMES = frozenset({"weather", "time"})


def body(**more: Any) -> dict[str, Any]:
    return chat_body(model="caller", tools=[WEATHER, TIME], max_tokens=60, **more)


def test_a_call_that_must_be_made_is_made_and_fits_the_parameters(v1: Server) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    found = post(v1, "chat/completions", body(tool_choice=named)).json()
    ChatCompletion.model_validate(found, strict=True)
    (choice,) = found["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    jsonschema.validate(json.loads(call["function"]["arguments"]), PLACE)

    streamed = chunks(post(v1, "chat/completions", body(tool_choice=named, stream=True)))
    for chunk in streamed:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    (made,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [(part["index"], part["function"]) for part in made] == [(0, call["function"])]
    assert not any(delta.get("content") for delta in deltas)
    assert streamed[-1]["choices"][0]["finish_reason"] == "tool_calls" and "receipt" in streamed[-1]


def test_required_makes_a_call_of_one_of_the_tools(v1: Server) -> None:
    (choice,) = post(v1, "chat/completions", body(tool_choice="required")).json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] in NAMES


def test_the_model_is_told_of_the_tools_and_of_what_came_of_a_call(v1: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 2}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sun"},
    ]
    with_none = post(v1, "chat/completions", body(messages=turns, tool_choice="none") | {"max_tokens": 1}).json()
    with_auto = post(v1, "chat/completions", body(messages=turns) | {"max_tokens": 1}).json()
    assert with_auto["usage"]["prompt_tokens"] > with_none["usage"]["prompt_tokens"] + 50, "tools cost tokens"
    job = v1.job(with_auto["id"].removeprefix("chatcmpl-"))
    told = job["request"]["messages"][1]["tool_calls"][0]["function"]
    assert told == {"name": "weather", "arguments": {"city": "Rome", "days": 2}}
    assert job["request"]["options"]["tools"][0]["function"]["name"] == "weather"
    again = v1.http.post(f"/api/jobs/{job['id']}/rerun").json()
    assert v1.until(again["id"], "done")["request"] == job["request"]


def test_a_template_without_a_place_for_tools_gets_the_generic_form(v1: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    turns = [*HELLO, {"role": "assistant", "content": "x", "tool_calls": [call]}, {"role": "tool", "content": "noon"}]
    sent = chat_body(messages=turns, tools=[TIME], tool_choice="required", max_tokens=30)
    found = post(v1, "chat/completions", sent).json()
    (made,) = found["choices"][0]["message"]["tool_calls"]
    assert made["function"] == {"name": "time", "arguments": "{}"}, "a tool without parameters takes {}"
    assert found["receipt"]["chosen"] == {"tool_prompt": "generic"}


def test_with_tools_and_a_schema_the_answer_is_a_call_or_fits(v1: Server) -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    (choice,) = post(v1, "chat/completions", body(response_format=form)).json()["choices"]
    if choice["finish_reason"] == "tool_calls":
        assert choice["message"]["tool_calls"][0]["function"]["name"] in NAMES
    else:
        assert set(json.loads(choice["message"]["content"])) == {"yes"}


ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
CALL = Call("weather", '{"city": "Rome"}')


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"<tool_call>\n{ROME}\n</tool_call>", [CALL]),
        (f"<tool_call>{ROME}</tool_call>\n<tool_call>{ROME}</tool_call>", [CALL, CALL]),
        (f"<tool_call>{ROME}", [CALL]),
        (f"[TOOL_CALLS][{ROME}, {ROME}]", [CALL, CALL]),
        ('<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}', [CALL]),
        (f" {ROME} ", [CALL]),
        (f"[{ROME}]", [CALL]),
        ('{"name": "time"}', [Call("time", "{}")]),
        ('{"name": "unknown", "arguments": {}}', []),
        ('{"name": "weather", "arguments": "Rome"}', []),
        (f"<tool_call>{ROME}</tool_call><tool_call>oops</tool_call>", []),
        ("<tool_call>oops</tool_call>", []),
        ("{", []),
        ("[1]", []),
        ("", []),
    ],
)
def test_the_forms_in_which_calls_are_written(text: str, calls: list[Call]) -> None:
    assert parse(text, NAMES) == calls


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Just words, 1 < 2 and [x].", "Just words, 1 < 2 and [x].", 0),
        (f"I look it up.\n<tool_call>{ROME}</tool_call>", "I look it up.\n", 1),
        (ROME, "", 1),
        (f"{ROME} is how it is called", f"{ROME} is how it is called", 0),
        ("<tool_call> is a tag", "<tool_call> is a tag", 0),
        ("a <tool", "a <tool", 0),
        ("  \n", "  \n", 0),
        (f"<tool_call>{ROME}</tool_call>" * 2, "", 2),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_found_however_the_text_is_cut_into_pieces(text: str, shown: str, calls: int, size: int) -> None:
    for single in (False, True):
        reader = ToolCallParser(NAMES, single)
        seen = "".join(reader.feed(text[at : at + size]) for at in range(0, len(text), size))
        rest, found = reader.end()
        assert (seen + rest, len(found)) == (shown, min(calls, 1) if single else calls)


def test_text_that_is_no_call_is_not_held_back() -> None:
    reader = ToolCallParser(NAMES, single=False)
    assert [reader.feed(piece) for piece in ("Hello", " you", " <", "b>")] == ["Hello", " you", " ", "<b>"]
