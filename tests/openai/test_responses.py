"""The Responses API with the official client: complete, streamed, stored, with tools and a schema."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

from tests.conftest import MODEL
from tests.openai.asking import refused
from tests.service import Server

ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 6}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]},
    "strict": True,
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Town(BaseModel):
    """What the model is held to."""

    people: int = Field(ge=1, le=9)


def test_a_response_is_stored_continued_and_deleted(v1: Server, client: OpenAI) -> None:
    first = client.responses.create(**ASKED, input="Say hello.", instructions="Be brief.", metadata={"a": "b"})
    assert (first.status, first.output_text != "") == ("incomplete", True) and first.metadata == {"a": "b"}
    assert first.incomplete_details and first.incomplete_details.reason == "max_output_tokens"
    assert first.usage and first.usage.output_tokens == 6 and first.instructions == "Be brief."
    job = v1.job(first.id.removeprefix("resp_"))
    assert job["output"]["text"] == first.output_text
    assert job["request"]["messages"][0] == {"role": "system", "content": "Be brief."}
    again = client.responses.retrieve(first.id)
    assert (again.output_text, again.status, again.usage) == (first.output_text, first.status, first.usage)
    second = client.responses.create(**ASKED, input="And now?", previous_response_id=first.id, instructions="Shout.")
    assert v1.job(second.id.removeprefix("resp_"))["request"]["messages"] == [
        {"role": "system", "content": "Shout."},
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    unstored = client.responses.create(**ASKED, input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ASKED, input="x", previous_response_id=unstored.id)


def test_a_stream_has_typed_events_in_order_that_join_to_the_response(client: OpenAI) -> None:
    events = list(client.responses.create(**ASKED, input="Say hello.", stream=True))
    for event in events:
        EVENTS.validate_python(event.model_dump(exclude_unset=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    assert text == last.response.output_text == client.responses.create(**ASKED, input="Say hello.").output_text
    with client.responses.stream(**ASKED, input="Say hello.") as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == text


def test_a_tool_is_called_and_its_result_is_answered(client: OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "max_output_tokens": 40, "tools": [WEATHER]}
    called = client.responses.create(**asked, input="Weather?", tool_choice="required")
    call: Any = called.output[0]
    assert (called.status, call.type, call.name) == ("completed", "function_call", "weather")
    assert set(json.loads(call.arguments)) == {"days"}
    streamed = list(client.responses.create(**asked, input="Weather?", tool_choice="required", stream=True))
    done = [event for event in streamed if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    answered = client.responses.create(**ASKED, input=[result], previous_response_id=called.id)
    assert answered.output_text
    listed: Any = ["Weather?", call.model_dump(), result]
    messages: Any = [{"role": "user", "content": listed[0]}, *listed[1:]]
    assert client.responses.create(**ASKED, input=messages).output_text


def test_structured_output_by_a_pydantic_model(client: OpenAI) -> None:
    found = client.responses.parse(**{**ASKED, "max_output_tokens": 40}, input="How many?", text_format=Town)
    assert isinstance(found.output_parsed, Town)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, ""),
    ({"input": None}, "input"),
    ({"tools": [{"type": "web_search"}]}, "tools.0"),
    ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "["}]}, "input.0"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
]


@pytest.mark.parametrize(("more", "param"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused_names_the_key_of_this_api(v1: Server, more: dict[str, Any], param: str) -> None:
    answer = v1.http.post("/v1/responses", json={**ASKED, "input": "x", **more})
    code = answer.json()["error"]["code"]
    assert code in ("validation_error", "unsupported_parameter")
    refused(answer, 400, code, param or None)


def test_what_clients_send_without_meaning_is_accepted(client: OpenAI) -> None:
    sent: dict[str, Any] = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": None, "summary": "auto"},
        "text": {"verbosity": "medium"},
        "truncation": "disabled",
        "parallel_tool_calls": False,
        "prompt_cache_key": "x",
        "store": False,
        "user": "me",
        "max_tool_calls": 3,
        "top_logprobs": 0,
    }
    assert client.responses.create(**ASKED, input=[{"role": "developer", "content": "x"}], **sent).output_text
