"""Anthropic's Messages API over plain HTTP; `tests/slow/clients/anthropic_suite.py` has its client."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.conftest import MODEL
from tests.service import Server

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Forecast.", "input_schema": SCHEMA}


def ask(server: Server, status: int = 200, route: str = "messages", **more: Any) -> Any:
    """One request and its JSON."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 0, **more}
    answer = server.http.post(f"/v1/{route}", json={key: value for key, value in body.items() if value != "absent"})
    assert answer.status_code == status, answer.text
    return answer.json()


def events(server: Server, **more: Any) -> list[tuple[str, Any]]:
    """The named events of a stream."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 0, "stream": True, **more}
    text = server.http.post("/v1/messages", json=body).text
    blocks = [block.split("\n", 1) for block in text.split("\n\n") if block.startswith("event: ")]
    found = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]
    assert all(data["type"] == name for name, data in found)
    return found


def test_a_message_and_its_stream(v1: Server) -> None:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    message = ask(v1, system=system, metadata={"user_id": "me"}, thinking={"type": "enabled", "budget_tokens": 1024})
    (block,) = message["content"]
    assert (message["type"], message["role"], block["type"]) == ("message", "assistant", "text")
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    job = v1.job(message["id"].removeprefix("msg_"))
    assert job["output"]["text"] == block["text"] and message["receipt"] == job["receipt"]
    assert job["request"]["messages"][0] == {"role": "system", "content": "Be brief."}
    usage = message["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (read, usage["output_tokens"]) == (job["receipt"]["counts"]["prompt_tokens"], 6)

    streamed = events(v1, system="Be brief.")
    names = [name for name, _ in streamed]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(data["delta"]["text"] for name, data in streamed if name == "content_block_delta")
    assert text == block["text"]
    assert streamed[-2][1]["delta"]["stop_reason"] == "max_tokens"
    assert streamed[-2][1]["usage"]["output_tokens"] == 6


def test_a_tool_is_called_and_its_result_is_answered(v1: Server) -> None:
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 40}
    message = ask(v1, **asked)
    (block,) = message["content"]
    assert (message["stop_reason"], block["type"], block["name"]) == ("tool_use", "tool_use", "weather")
    jsonschema.validate(block["input"], SCHEMA)
    streamed = events(v1, **asked)
    parts = [data["delta"]["partial_json"] for name, data in streamed if name == "content_block_delta"]
    assert json.loads("".join(parts)) == block["input"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "sun"}]}
    turns = [*HELLO, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    answered = ask(v1, messages=turns, tools=[WEATHER])
    sent = v1.job(answered["id"].removeprefix("msg_"))["request"]["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]
    assert sent[2] == {"role": "tool", "content": "sun", "tool_call_id": block["id"]}


def test_a_message_of_the_assistant_at_the_end_is_continued(v1: Server) -> None:
    turns = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "One, two, three,"}]
    assert "four" in ask(v1, messages=turns, max_tokens=3)["content"][0]["text"]


def test_an_answer_in_a_schema(v1: Server) -> None:
    form = {"type": "json_schema", "schema": {**SCHEMA, "additionalProperties": False}}
    for more in ({"output_config": {"format": form}}, {"output_format": form}):
        (block,) = ask(v1, **more, max_tokens=40)["content"]
        jsonschema.validate(json.loads(block["text"]), SCHEMA)


def test_tokens_are_counted_as_the_model_counts_them(v1: Server) -> None:
    counted = ask(v1, route="messages/count_tokens", max_tokens="absent")
    usage = ask(v1)["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    with_tools = ask(v1, route="messages/count_tokens", max_tokens="absent", tools=[WEATHER])
    assert with_tools["input_tokens"] > counted["input_tokens"] + 20


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"max_tokens": "absent"}, 400, "invalid_request_error", "max_tokens"),
    ({"messages": []}, 400, "invalid_request_error", "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "messages.0.content.0"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "invalid_request_error",
     "messages.0.content.0"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools.0"),
    ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
    ({"mcp_servers": [{"type": "url"}]}, 400, "invalid_request_error", "mcp_servers"),
    ({"output_format": {"type": "xml"}}, 400, "invalid_request_error", "output_format"),
    ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences.0"),
    ({"model": "nope"}, 404, "not_found_error", "model"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "status", "kind", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_errors_have_anthropic_s_shape(v1: Server, more: Any, status: int, kind: str, param: str | None) -> None:
    body = ask(v1, status, **more)
    assert body["type"] == "error" and set(body["error"]) == {"type", "message", "code", "param"}
    assert (body["error"]["type"], body["error"]["param"]) == (kind, param)


def test_an_unsupported_key_with_an_empty_value_is_accepted(v1: Server) -> None:
    assert ask(v1, mcp_servers=[], container=None, service_tier="auto", stop_sequences=[], tools=[])["content"]
