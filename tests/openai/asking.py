"""Send requests to the OpenAI-compatible API over plain HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.conftest import MODEL
from tests.service import Server

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


def chat_body(**more: Any) -> dict[str, Any]:
    """A short chat request."""
    return {"model": MODEL, "messages": HELLO, "max_tokens": 4, "temperature": 0, **more}


def completion_body(**more: Any) -> dict[str, Any]:
    """A short completion request."""
    return {"model": MODEL, "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0, **more}


def post(server: Server, route: str, body: dict[str, Any]) -> httpx.Response:
    """One request, which must be answered well."""
    answer = server.http.post(f"/v1/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended in order."""
    lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    assert all(line.startswith("data: {") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def refused(answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The error of an answer, checked for OpenAI's shape."""
    assert answer.headers["content-type"] == "application/json; charset=utf-8", answer.text
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "code", "param"}, body
    error: dict[str, Any] = body["error"]
    assert (answer.status_code, error["code"]) == (status, code), body
    assert error["param"] == param, body
    reason, _, remedy = error["message"].partition(". ")
    assert len(reason) > 10 and len(remedy) > 10, error
    return error
