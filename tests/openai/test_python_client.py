"""The official Python client, end to end on a real server and model, also over faulty connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from backend.common.types import TERMINAL
from tests.conftest import MODEL
from tests.openai.asking import HELLO
from tests.openai.fault_proxy import FaultProxy
from tests.service import Server, wait_for

STORY: list[Any] = [{"role": "user", "content": "Write a very long story about a dog."}]


class Town(BaseModel):
    """What the model is held to."""

    name: str = Field(max_length=12)
    people: int = Field(ge=1, le=9999)


def test_models_chat_and_a_device_of_choice(client: OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).owned_by == "touchstone"
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=3, temperature=0, extra_body={"device": "CPU", "fallback": "never"}
    )
    found = raw.parse()
    assert (raw.headers["x-device-asked"], raw.headers["x-device-used"]) == ("CPU", "cpu")
    assert found.choices[0].message.content and found.choices[0].finish_reason == "length"
    assert found.model_extra and found.model_extra["receipt"]["used"] == "cpu"


def test_a_stream_with_usage(client: OpenAI) -> None:
    *chunks, last = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=3,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, temperature=0)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert last.usage and whole.usage and last.usage.completion_tokens == whole.usage.completion_tokens == 3


def test_stop_and_seed(client: OpenAI) -> None:
    def say(**more: Any) -> str:
        asked = {"temperature": 1.2, "seed": 5, "max_tokens": 8, **more}
        return client.chat.completions.create(model=MODEL, messages=HELLO, **asked).choices[0].message.content or ""

    text = say()
    assert say() == text != say(seed=6)
    stop = text[3:6]
    assert say(stop=[stop, "☃"]) == text[: text.index(stop)]


def test_structured_output_by_a_pydantic_model(client: OpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": "Name a town."}]
    found = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Town, max_tokens=60)
    assert isinstance(found.choices[0].message.parsed, Town)


def test_completions_and_embeddings(client: OpenAI) -> None:
    found = client.completions.create(model=MODEL, prompt=["One, two,", "A, B,"], max_tokens=2, logprobs=1)
    assert len(found.choices) == 2 and found.choices[0].logprobs
    vectors = client.embeddings.create(model="embedder", input=["a", "b"])  # which come as base64
    assert [len(entry.embedding) for entry in vectors.data] == [16, 16]


def test_a_tool_is_called(client: OpenAI) -> None:
    tools: list[Any] = [openai.pydantic_function_tool(Town, name="found")]
    found = client.chat.completions.create(
        model="caller", messages=HELLO, tools=tools, tool_choice="required", max_tokens=60
    )
    (call,) = found.choices[0].message.tool_calls or []
    assert call.type == "function" and Town.model_validate(json.loads(call.function.arguments))


def test_refusals_are_the_client_s_own_errors(client: OpenAI) -> None:
    refusals: list[tuple[type[openai.APIStatusError], str, dict[str, Any]]] = [
        (openai.NotFoundError, "model_not_found", {"model": "nope"}),
        (openai.BadRequestError, "unsupported_parameter", {"reasoning_effort": "low"}),
        (openai.ConflictError, "device_not_ready", {"extra_body": {"device": "cuda:9", "fallback": "never"}}),
        (openai.BadRequestError, "context_length_exceeded", {"model": "tiny", "messages": [*STORY] * 9}),
    ]
    for kind, code, more in refusals:
        for stream in (False, True):
            with pytest.raises(kind) as refusal:
                client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "stream": stream, **more})
            assert refusal.value.code == code and str(refusal.value.message)


# Leaving, and bad lines


def long_stream(client: OpenAI) -> Any:
    return client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=3000, stream=True, temperature=0)


def last_job(server: Server) -> dict[str, Any]:
    job: dict[str, Any] = server.http.get("/api/jobs?limit=1").json()["jobs"][0]
    return job


def was_cancelled(server: Server) -> dict[str, Any]:
    """The newest job, once it has ended: by a cancel, long before its limit."""
    job = server.until(last_job(server)["id"], *TERMINAL)
    assert job["status"] == "cancelled", job
    assert not job["receipt"] or job["receipt"]["counts"].get("tokens", 0) < 1000
    return job


def test_leaving_a_stream_stops_the_work(v1: Server, client: OpenAI) -> None:
    stream = long_stream(client)
    seen = [next(stream).choices[0].delta.content for _ in range(4)]
    stream.close()
    job = was_cancelled(v1)
    assert job["output"]["text"].startswith("".join(text or "" for text in seen))


def test_a_client_that_waits_no_longer_cancels_its_job(v1: Server, client_of: Callable[..., OpenAI]) -> None:
    before = last_job(v1)["id"]
    with pytest.raises(openai.APITimeoutError):
        client_of(v1.url, timeout=1.0).chat.completions.create(model=MODEL, messages=STORY, max_tokens=3000)
    wait_for(lambda: last_job(v1)["id"] != before)
    was_cancelled(v1)


def test_a_slow_and_throttled_line_loses_nothing(v1: Server, client_of: Callable[..., OpenAI]) -> None:
    plain = client_of(v1.url).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, temperature=0)
    with FaultProxy(v1.url, delay_s=0.02, bytes_per_s=20_000) as line:
        slow = client_of(line.url)
        options: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "temperature": 0}
        whole = slow.chat.completions.create(**options)
        text = "".join(
            chunk.choices[0].delta.content or "" for chunk in slow.chat.completions.create(**options, stream=True)
        )
        slow.close()
    assert whole.choices[0].message.content == text == plain.choices[0].message.content


def test_a_line_that_breaks_in_a_stream_is_an_error_and_cancels(v1: Server, client_of: Callable[..., OpenAI]) -> None:
    seen = []
    with FaultProxy(v1.url, cut_after_bytes=2500) as line:
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            for chunk in long_stream(client_of(line.url)):
                seen.append(chunk)
        assert seen and seen[-1].choices[0].finish_reason is None
        was_cancelled(v1)


def test_a_line_that_swallows_the_answer_times_out_and_cancels(v1: Server, client_of: Callable[..., OpenAI]) -> None:
    before = last_job(v1)["id"]
    with FaultProxy(v1.url, swallows=True) as line:
        with pytest.raises(openai.APITimeoutError):
            next(long_stream(client_of(line.url, timeout=1.0)))
        wait_for(lambda: last_job(v1)["id"] != before)
        was_cancelled(v1)
