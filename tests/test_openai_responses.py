"""The Responses API without a server: items become messages, and parts become events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.server.v1.message_reader import Part
from backend.server.v1.responses.items import messages_of, output_items
from backend.server.v1.responses.objects import _EventWriter
from backend.server.v1.tool_calls import Call

ITEMS: list[tuple[Any, list[dict[str, Any]]]] = [
    ("Hi", [{"role": "user", "content": "Hi"}]),
    (
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "m",
                "status": "completed",
                "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}', "status": "completed"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        ],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": "b",
                "reasoning_content": "why",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                    {"id": "c2", "type": "function", "function": {"name": "f", "arguments": {}}},
                ],
            },
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
            {"role": "tool", "content": "2", "tool_call_id": "c2"},
        ],
    ),
]


@pytest.mark.parametrize(("items", "messages"), ITEMS, ids=["text", "items"])
def test_items_become_the_messages_of_a_job(items: Any, messages: list[dict[str, Any]]) -> None:
    assert messages_of(items) == messages


CALLS = [Call("f", "{}"), Call("g", '{"a": 1}')]
PARTS: list[list[Part]] = [
    [Part()],
    [Part("", "a"), Part("", "b")],
    [Part("why", ""), Part("?", ""), Part("", "so"), Part()],
    [Part("why", "so"), Part(calls=CALLS)],
    [Part(calls=CALLS)],
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_the_events_of_a_stream_join_to_the_items_of_the_response(parts: list[Part]) -> None:
    writer = _EventWriter("j")
    lines = [line for part in parts for line in writer.add(part)] + list(writer.close(is_cut=False))
    events = [json.loads(line.split("data: ", 1)[1]) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output_items("j", writer.read, is_incomplete=False)
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == list(range(len(done)))
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]
    for item in done:
        deltas = [event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event]
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(deltas) == whole
