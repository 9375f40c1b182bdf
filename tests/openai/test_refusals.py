"""Errors of the OpenAI-compatible API: before the stream starts, in OpenAI's shape, with the documented status."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.conftest import MODEL
from tests.openai.asking import HELLO, chat_body, completion_body, refused
from tests.service import Server

JSON = {"Content-Type": "application/json"}


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def tool(name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


IMAGE = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
UNSUPPORTED = [
    ({"temprature": 1}, "temprature"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"min_p": 0.1}, "min_p"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
    ({"messages": user("x", audio={"id": "x"})}, "audio"),
    ({"messages": [*HELLO, *user(IMAGE)]}, "messages.1.content.1"),
    ({"messages": user([{"type": "input_audio", "input_audio": {}}])}, "messages.0.content.0"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
        "response_format",
    ),
]
WRONG = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0.role"),
    ({"messages": user(7)}, "messages.0.content"),
    ({"messages": user([{"type": "text"}])}, "messages.0.content.0"),
    ({"messages": user(["x"])}, "messages.0.content.0"),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
     "messages.1.tool_calls.0.function"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"seed": "7"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"logit_bias": {"the": 1}}, "logit_bias"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, "response_format"),
    ({"fallback": "gpu"}, "fallback"),
    ({"messages": user("cut \ud83d")}, "messages.0.content"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("more", "param"), UNSUPPORTED, ids=lambda value: str(value)[:50])
def test_what_is_not_supported_is_refused_by_name(v1: Server, more: dict[str, Any], param: str, stream: bool) -> None:
    answer = v1.http.post("/v1/chat/completions", json=chat_body(**{"stream": stream, **more}))
    error = refused(answer, 400, "unsupported_parameter", param)
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[-1] in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("more", "param"), WRONG, ids=lambda value: ascii(value)[:50])
def test_what_is_wrong_is_refused_with_its_place(v1: Server, more: dict[str, Any], param: str, stream: bool) -> None:
    body = json.dumps(chat_body(**{"stream": stream, **more}))
    refused(v1.http.post("/v1/chat/completions", content=body, headers=JSON), 400, "validation_error", param)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'g'"),
    ],
)
def test_what_contradicts_itself_is_refused(v1: Server, more: dict[str, Any], words: str) -> None:
    answer = v1.http.post("/v1/chat/completions", json=chat_body(**more))
    assert words in refused(answer, 400, "validation_error")["message"]


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"messages": HELLO}, "unsupported_parameter", "messages"),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
        ({"prompt": [10**9]}, "validation_error", "prompt"),
        ({"prompt": [1.5]}, "validation_error", "prompt"),
        ({"prompt": ""}, "validation_error", "prompt"),
        ({"prompt": ["x", ""]}, "validation_error", "prompt"),
        ({"prompt": None}, "validation_error", "prompt"),
        ({"logprobs": True}, "validation_error", "logprobs"),
        ({"prompt": ["x"] * 65, "n": 2}, "validation_error", None),
    ],
)
def test_what_completions_refuse(v1: Server, more: dict[str, Any], code: str, param: str | None) -> None:
    refused(v1.http.post("/v1/completions", json=completion_body(**more)), 400, code, param)


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings"])
@pytest.mark.parametrize("model", [None, "", "nope", "NOPE/x", "x" * 1000])
def test_a_model_that_is_unknown_or_not_named_is_not_found(v1: Server, route: str, model: str | None) -> None:
    body: dict[str, Any] = (
        {"messages": HELLO} if route == "chat/completions" else {"input" if route == "embeddings" else "prompt": "x"}
    )
    if model is not None:
        body["model"] = model
    refused(v1.http.post(f"/v1/{route}", json=body), 404, "model_not_found", "model")


def test_unknown_names_and_devices_that_are_not_ready(v1: Server) -> None:
    refused(v1.http.get("/v1/models/nope"), 404, "model_not_found", "model")

    def ask(**more: Any) -> httpx.Response:
        return v1.http.post("/v1/chat/completions", json=chat_body(**more))

    assert "cpu" in refused(ask(device="warp"), 404, "unknown_device", "device")["message"]
    refused(ask(device="cuda:7", fallback="never", stream=True), 409, "device_not_ready", "device")
    fell = ask(device="cuda:7")
    assert (fell.headers["x-device-asked"], fell.headers["x-device-used"]) == ("cuda:7", "cpu")
    assert fell.json()["receipt"]["fell_back"] is True


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_longer_than_the_context_is_refused_with_both_counts(v1: Server, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "word " * 200, "max_tokens": 1, "stream": stream}
    answer = v1.http.post("/v1/completions", json=body)
    error = refused(answer, 400, "context_length_exceeded", "prompt")
    assert "1002 tokens" in error["message"] and "128" in error["message"]
    assert v1.job(answer.headers["x-job-id"])["status"] == "error"


def test_everything_under_v1_answers_in_openai_s_shape(v1: Server) -> None:
    def post(**more: Any) -> httpx.Response:
        return v1.http.post("/v1/chat/completions", **more)

    refused(v1.http.get("/v1/nothing"), 404, "not_found")
    refused(v1.http.get("/v1"), 404, "not_found")
    refused(v1.http.get("/v1/chat/completions"), 405, "method_not_allowed")
    for body in (b"", b"{", b'"x"\xff', b'{"model": "x"}\0'):
        refused(post(content=body, headers=JSON), 400, "bad_json")
    refused(post(content=b"[]", headers=JSON), 400, "validation_error")
    refused(post(data={"model": MODEL}), 415, "unsupported_media_type")
    refused(post(content=b" " * 20_000_000, headers=JSON), 413, "payload_too_large")
    refused(v1.http.get("/v1/models", headers={"Host": "evil.com"}), 421, "forbidden_host")
    answer = v1.http.get("/v1/models", headers={"Origin": "https://evil.com"})
    assert refused(answer, 403, "forbidden_origin")["type"] == "permission_error"
    assert "access-control-allow-origin" not in answer.headers
    assert v1.http.options("/v1/models", headers={"Origin": "https://evil.com"}).status_code == 403
    assert "error" not in v1.http.get("/v1x").json(), "that is another address"


def test_a_token_opens_it_as_openai_s_clients_send_it(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_TOKEN": "a-token-for-tests"})
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = server.http.get("/v1/models", headers=headers)
        assert refused(answer, 401, "unauthorized")["type"] == "authentication_error"
        assert answer.headers["www-authenticate"] == "Bearer"
    answer = server.http.get("/v1/models", headers={"Authorization": "Bearer a-token-for-tests"})
    assert answer.status_code == 200
