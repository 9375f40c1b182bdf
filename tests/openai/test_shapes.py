"""Responses in OpenAI's shapes, checked with the models of the official package, and one job per choice."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.conftest import MODEL
from tests.openai.asking import HELLO, chat_body, chunks, completion_body, post
from tests.service import Server

_THINK = {"chat_template_kwargs": {"think": True}}
CHUNK = {"id", "object", "created", "model", "choices", "system_fingerprint"}


def fits(shape: type[BaseModel], value: Any) -> None:
    """Validated strictly; what OpenAI does not have must be ours."""
    shape.model_validate(value, strict=True)
    unknown = set(value) - set(shape.model_fields) - {"receipt", "receipts", "task", "state", "licence"}
    assert not unknown, unknown


def ran_as_job(server: Server, answer: httpx.Response, receipt: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """The job behind a choice, whose receipt the answer carries and whose device the headers name."""
    ids = (answer.headers.get("x-job-ids") or answer.headers["x-job-id"]).split(", ")
    assert ids[0] == answer.headers["x-job-id"]
    job = server.job(ids[number])
    assert job["receipt"] == receipt
    assert (job["status"], job["task"], job["error"]) == ("done", "text", None)
    assert answer.headers["x-device-asked"] == receipt["asked"]
    assert answer.headers["x-device-used"] == receipt["used"] == "cpu"
    assert job["id"] in [listed["id"] for listed in server.http.get("/api/jobs?limit=200").json()["jobs"]]
    return job


def test_models(v1: Server) -> None:
    listed = v1.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert MODEL in [model["id"] for model in listed["data"]]
    for model in listed["data"]:
        fits(Model, model)
        assert v1.http.get(f"/v1/models/{model['id']}").json() == model


def test_a_chat_completion(v1: Server) -> None:
    answer = post(v1, "chat/completions", chat_body(device="cpu", fallback="never"))
    found = answer.json()
    fits(ChatCompletion, found)
    job = ran_as_job(v1, answer, found["receipt"])
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": job["output"]["text"], "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    counts = job["receipt"]["counts"]
    assert found["usage"]["completion_tokens"] == counts["tokens"] == 4
    assert found["usage"]["prompt_tokens"] == counts["prompt_tokens"] > 10
    assert found["usage"]["total_tokens"] == counts["tokens"] + counts["prompt_tokens"]
    assert job["request"]["device"] == "cpu" and job["receipt"]["chat_template"] == "model"
    plain = v1.generate(messages=HELLO, options={"max_tokens": 4, "temperature": 0})
    assert plain["output"]["text"] == choice["message"]["content"]


def test_a_chat_stream(v1: Server) -> None:
    answer = post(v1, "chat/completions", chat_body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store, no-transform", "no")
    found = chunks(answer)
    for chunk in found:
        fits(ChatCompletionChunk, chunk)
        assert set(chunk) - {"receipt"} == CHUNK and len(chunk["choices"]) == 1
    first, last = found[0]["choices"][0], found[-1]["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (last["delta"], last["finish_reason"]) == ({}, "length")
    assert [chunk["choices"][0]["finish_reason"] for chunk in found[:-1]] == [None] * (len(found) - 1)
    assert [chunk for chunk in found if "receipt" in chunk] == found[-1:]
    job = ran_as_job(v1, answer, found[-1]["receipt"])
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found)
    assert text == job["output"]["text"] != ""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1


def test_usage_comes_with_a_last_chunk_if_it_was_asked_for(v1: Server) -> None:
    body = chat_body(stream=True, stream_options={"include_usage": True})
    *found, last = chunks(post(v1, "chat/completions", body))
    fits(ChatCompletionChunk, last)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in found)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    assert "receipt" not in last and found[-1]["choices"][0]["finish_reason"] == "length"


def test_a_completion_continues_the_text_as_it_is(v1: Server) -> None:
    answer = post(v1, "completions", completion_body())
    found = answer.json()
    fits(Completion, found)
    job = ran_as_job(v1, answer, found["receipt"])
    assert found["choices"][0]["text"] == job["output"]["text"]
    assert job["receipt"]["chat_template"] is None
    assert found["usage"]["prompt_tokens"] < 10, "no template around it"
    streamed = chunks(post(v1, "completions", completion_body(stream=True)))
    for chunk in streamed:
        (choice,) = chunk["choices"]  # the package's model knows no chunk without a reason, though OpenAI sends them
        fits(Completion, {**chunk, "choices": [{**choice, "finish_reason": choice["finish_reason"] or "stop"}]})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == found["choices"][0]["text"]
    assert [("receipt" in chunk, chunk["choices"][0]["finish_reason"]) for chunk in streamed[-2:]] == [
        (False, None),
        (True, "length"),
    ]


def test_each_of_n_choices_is_a_job_with_a_seed_and_a_receipt_of_its_own(v1: Server) -> None:
    body = chat_body(n=2, seed=7, temperature=1.5)
    answer = post(v1, "chat/completions", body)
    found = answer.json()
    fits(ChatCompletion, found)
    assert found["receipt"] == found["receipts"][0]
    jobs = [ran_as_job(v1, answer, receipt, number) for number, receipt in enumerate(found["receipts"])]
    assert len({job["id"] for job in jobs}) == 2
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in found["choices"]] == [job["output"]["text"] for job in jobs]
    assert [receipt["seed"] for receipt in found["receipts"]] == [7, 8]
    counts = [receipt["counts"] for receipt in found["receipts"]]
    assert found["usage"]["prompt_tokens"] == counts[0]["prompt_tokens"], "the prompt counts once"
    assert found["usage"]["completion_tokens"] == sum(count["tokens"] for count in counts)
    again = chunks(post(v1, "chat/completions", {**body, "stream": True}))
    texts = {0: "", 1: ""}
    for chunk in again:
        fits(ChatCompletionChunk, chunk)
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        assert ("receipt" in chunk) is (choice["finish_reason"] is not None)
    assert list(texts.values()) == [choice["message"]["content"] for choice in found["choices"]]


def test_each_of_several_prompts_is_a_choice(v1: Server) -> None:
    found = post(v1, "completions", completion_body(prompt=["One, two,", "A, B,"], n=2, max_tokens=2)).json()
    fits(Completion, found)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    counts = [receipt["counts"]["prompt_tokens"] for receipt in found["receipts"]]
    assert found["usage"]["prompt_tokens"] == counts[0] + counts[2]


def test_log_probabilities_of_chat(v1: Server) -> None:
    body = chat_body(logprobs=True, top_logprobs=2)
    (choice,) = post(v1, "chat/completions", body).json()["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in tokens)
    streamed = chunks(post(v1, "chat/completions", {**body, "stream": True}))
    parts = [part["choices"][0]["logprobs"] for part in streamed]
    again = [token["token"] for part in parts if part for token in part["content"]]
    assert again == [token["token"] for token in tokens]


def test_log_probabilities_of_completions(v1: Server) -> None:
    (choice,) = post(v1, "completions", completion_body(logprobs=2)).json()["choices"]
    listed = choice["logprobs"]
    assert "".join(listed["tokens"]) == choice["text"]
    for at, token in zip(listed["text_offset"], listed["tokens"], strict=True):
        assert choice["text"][at:].startswith(token)
    pairs = zip(listed["tokens"], listed["token_logprobs"], listed["top_logprobs"], strict=True)
    assert all(top[token] == logprob for token, logprob, top in pairs), "the chosen token is among them"
    assert len(listed["token_logprobs"]) == len(listed["top_logprobs"]) == len(listed["tokens"]) == 4
    streamed = chunks(post(v1, "completions", completion_body(logprobs=2, stream=True)))
    parts = [part["choices"][0]["logprobs"] for part in streamed if part["choices"][0]["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == listed["text_offset"]


def test_a_prompt_may_be_token_ids_and_may_be_returned(v1: Server) -> None:
    text = post(v1, "completions", completion_body(echo=True)).json()
    assert text["choices"][0]["text"].startswith("One, two, three,") and len(text["choices"][0]["text"]) > 16
    streamed = chunks(post(v1, "completions", completion_body(echo=True, stream=True)))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text["choices"][0]["text"]
    found = post(v1, "completions", completion_body(prompt=[[1, 2, 3], [4]])).json()
    assert found["usage"]["prompt_tokens"] == 4 and len(found["choices"]) == 2


def test_an_answer_at_the_end_is_continued(v1: Server) -> None:
    given = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "One, two, three,"}]
    found = post(v1, "chat/completions", chat_body(messages=given, max_tokens=3)).json()
    assert "four" in found["choices"][0]["message"]["content"]


def test_a_text_that_begins_within_the_thoughts_is_reasoning(v1: Server) -> None:
    body = chat_body(model="caller", chat_template_kwargs={"think": True})
    found = post(v1, "chat/completions", body).json()
    message = found["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == "", "four tokens, and no closing mark"
    job = v1.job(found["id"].removeprefix("chatcmpl-"))
    assert job["output"]["text"].strip() == message["reasoning_content"].strip()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(post(v1, "chat/completions", {**body, "stream": True}))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
    plain = post(v1, "chat/completions", chat_body(model="caller", chat_template_kwargs={"think": False})).json()
    assert "reasoning_content" not in plain["choices"][0]["message"]
    stored = post(v1, "responses", {"model": "caller", "input": "Hi", "max_output_tokens": 4, **_THINK}).json()
    assert [item["type"] for item in stored["output"]] == ["reasoning", "message"]
    again = v1.http.get(f"/v1/responses/{stored['id']}").json()
    assert again["output"] == stored["output"]
    message = post(v1, "messages", {"model": "caller", "messages": HELLO, "max_tokens": 4, **_THINK}).json()
    assert [block["type"] for block in message["content"]] == ["thinking"]


def test_the_fingerprint_is_that_of_the_version_model_engine_and_device(v1: Server) -> None:
    def fingerprint(**more: Any) -> str:
        found: str = post(v1, "completions", completion_body(max_tokens=1, **more)).json()["system_fingerprint"]
        return found

    assert fingerprint(seed=1) == fingerprint(seed=2) != fingerprint(model="tiny")


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_work(v1: Server, limit: str) -> None:
    body = {**chat_body(), "max_tokens": None, limit: 3}
    found = post(v1, "chat/completions", body).json()
    assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (3, "length")


@pytest.mark.parametrize("seed", [-2, 2**40 + 7])
def test_a_seed_of_64_bits_is_one_too(v1: Server, seed: int) -> None:
    def said() -> Any:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 1.5, "seed": seed}
        return v1.http.post("/v1/chat/completions", json=body).json()

    one, other = said(), said()
    assert one["choices"] == other["choices"]
    assert one["receipt"]["seed"] == seed % (2**32 - 1)


def test_a_top_p_of_nothing_is_the_likeliest_token(v1: Server) -> None:
    def said(**more: Any) -> str:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 8, **more}
        text: str = v1.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        return text

    assert said(top_p=0, temperature=1.5) == said(temperature=0)


def test_null_is_left_out_and_keys_without_effect_are_accepted(v1: Server) -> None:
    nulls = dict.fromkeys(("stop", "seed", "n", "logit_bias", "response_format", "tools", "functions", "audio"))
    idle = {"user": "me", "metadata": {"a": "b"}, "store": True, "safety_identifier": "x", "prompt_cache_key": "y"}
    same = {"service_tier": "auto", "modalities": ["text"], "parallel_tool_calls": True, "logprobs": False}
    plain = post(v1, "chat/completions", chat_body()).json()["choices"]
    assert post(v1, "chat/completions", chat_body(**nulls, **idle, **same)).json()["choices"] == plain
    same = {"echo": False, "best_of": 1, "suffix": ""}
    assert post(v1, "completions", completion_body(**same)).json()["choices"][0]["text"]


def test_parts_are_joined_and_developer_is_system(v1: Server) -> None:
    parts = [{"type": "text", "text": "Name one"}, {"type": "text", "text": " fruit."}]
    joined = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name one fruit."}]
    split = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": parts},
    ]
    one, two = (post(v1, "chat/completions", chat_body(messages=messages)).json() for messages in (joined, split))
    assert one["choices"] == two["choices"]
    job = v1.job(two["id"].removeprefix("chatcmpl-"))
    assert job["request"]["messages"] == joined


def test_a_typed_control_mark_stays_text(v1: Server) -> None:
    def prompt_tokens(content: str) -> int:
        body = chat_body(messages=[{"role": "user", "content": content}], max_tokens=1)
        return int(post(v1, "chat/completions", body).json()["usage"]["prompt_tokens"])

    assert prompt_tokens("a<|im_end|>b") > prompt_tokens("a b") + 3, "many tokens of text, not one mark"


def test_a_request_with_a_key_can_be_repeated_also_after_its_end(v1: Server) -> None:
    for route, body in (
        ("chat/completions", chat_body(n=2, temperature=1.5)),
        ("completions", completion_body()),
        ("responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 3}),
        ("messages", {"model": MODEL, "messages": HELLO, "max_tokens": 3}),
    ):
        headers = {"Idempotency-Key": f"a key for {route}"}
        first, again = (v1.http.post(f"/v1/{route}", json=body, headers=headers) for _ in range(2))
        assert first.status_code == again.status_code == 200, again.text
        assert first.headers["x-job-id"] == again.headers["x-job-id"]
        assert {**first.json(), "created": 0, "created_at": 0} == {**again.json(), "created": 0, "created_at": 0}
        other = v1.http.post(f"/v1/{route}", json={**body, "seed": 9}, headers=headers)
        refused_status = (other.status_code, other.json()["error"]["code"])
        assert refused_status == (400, "validation_error")
    streamed = chunks(
        v1.http.post(
            "/v1/completions", json=completion_body(stream=True), headers={"Idempotency-Key": "a key for completions"}
        )
    )
    text = post(v1, "completions", completion_body()).json()["choices"][0]["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text


def test_a_dropped_request_with_a_key_goes_on_and_a_retry_gets_its_result(v1: Server) -> None:
    body = chat_body(max_tokens=60, messages=[{"role": "user", "content": "Write a long story."}])
    headers = {"Idempotency-Key": "a dropped one"}
    with pytest.raises(httpx.TimeoutException):
        v1.http.post("/v1/chat/completions", json=body, headers=headers, timeout=0.2)
    answer = v1.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 60
