"""POST /api/generate: its three response forms, validation errors, aliases, fallback and the receipt."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from backend.common.types import TERMINAL
from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import Server, follow, read_events, stream_events, text_of

ASYNC = {"Prefer": "respond-async"}
JSON = {"Content-Type": "application/json"}
SHORT = {"max_tokens": 4, "temperature": 0}


def asked(**body: Any) -> dict[str, Any]:
    return {"prompt": "Say hello.", "options": SHORT, **body}


# The three forms


def test_a_waiting_post_answers_with_the_finished_job(server: Server) -> None:
    answer = server.http.post("/api/generate", json=asked(device="cpu"))
    job = answer.json()
    assert answer.status_code == 200
    assert answer.headers["x-job-id"] == job["id"]
    assert (job["status"], job["task"], job["model"]) == ("done", "text", MODEL)
    assert job["output"]["text"]
    assert job["output"]["finish_reason"] == "length"
    assert job["error"] is None
    assert job["created_at"] <= job["started_at"] <= job["ended_at"]
    assert server.job(job["id"]) == job


def test_respond_async_answers_at_once_and_says_where_the_job_is(server: Server) -> None:
    answer = server.http.post("/api/generate", json=asked(), headers={"Prefer": "wait=5, Respond-Async"})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/jobs/{answer.json()['id']}"
    assert answer.headers["x-job-id"] == answer.json()["id"]
    assert answer.json()["status"] == "queued"
    assert server.http.get(answer.headers["location"]).status_code == 200
    assert server.until(answer.json()["id"], *TERMINAL)["status"] == "done"


def test_a_stream_begins_with_a_comment_and_nothing_may_buffer_or_compress_it(server: Server) -> None:
    body = asked(stream=True)
    headers = {"Accept-Encoding": "gzip, br, deflate"}
    with server.http.stream("POST", "/api/generate", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(":")
        events = list(read_events(lines))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert "content-encoding" not in answer.headers
        assert answer.headers["x-job-id"] == events[0].data["job_id"]


def test_the_events_of_a_stream_come_in_order_and_join_to_the_output(server: Server) -> None:
    events = list(stream_events(server, asked(options={"max_tokens": 8, "temperature": 0})))
    names = [event.event for event in events]
    order = [name for name, _ in itertools.groupby(name for name in names if name not in ("loading", "progress"))]
    assert order == ["queued", "running", "token", "done"]
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert len({event.data["job_id"] for event in events}) == 1
    assert [event.data["at"] for event in events] == sorted(event.data["at"] for event in events)
    last = events[-1].data
    assert text_of(events) == last["output"]["text"] != ""
    assert sum(event.data["count"] for event in events if event.event == "token") == last["receipt"]["counts"]["tokens"]
    for event in events:
        if event.event == "progress" and event.data["phase"] == "prompt":
            assert event.data["unit"] == "tokens"
            assert 0 < event.data["done"] <= event.data["total"]
    assert {key: value for key, value in last.items() if key not in ("job_id", "at")} == server.job(last["job_id"])


def test_messages_are_a_conversation(server: Server) -> None:
    messages = [
        {"role": "system", "content": "You answer with one word."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Go on."},
    ]
    alone = server.generate(prompt="Go on.", options=SHORT)
    whole = server.generate(messages=messages, options=SHORT)
    assert whole["status"] == "done"
    assert whole["request"]["messages"] == messages
    assert whole["receipt"]["counts"]["prompt_tokens"] > alone["receipt"]["counts"]["prompt_tokens"]


def test_backend_is_another_name_for_device(server: Server) -> None:
    for body in (asked(backend="cpu"), asked(backend="cpu", device="cpu")):
        assert server.generate(**body)["receipt"]["asked"] == "cpu"


# What it refuses


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (asked(messages=[{"role": "user", "content": "x"}]), "prompt and messages"),
        ({"options": SHORT}, "neither prompt nor messages"),
        (asked(prompt=""), "prompt"),
        (asked(prompt=None), "neither"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "messages.0.nmae"),
        (asked(prompt=7), "prompt"),
        (asked(prompt=["x"]), "prompt"),
        (asked(stream="true"), "stream"),
        (asked(stream=1), "stream"),
        (asked(fallback="gpu"), "fallback"),
        (asked(device=""), "device"),
        (asked(device=0), "device"),
        (asked(device="x" * 300), "device"),
        (asked(device="cpu", backend="cuda:0"), "leave one out"),
        (asked(engine="llamacpp"), "Unknown engine 'llamacpp'"),
        (asked(device="onnx", engine="llama.cpp"), "onnx-genai"),
        (asked(task="music"), "max_tokens"),  # an option of text
        (asked(task="nonsense"), "nonsense"),
        (asked(inputs={"audio": "x"}), "inputs"),
        (asked(options=[]), "options"),
        (asked(options={"tempo_bpm": 90}), "options.tempo_bpm"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(server: Server, body: dict[str, Any], words: str) -> None:
    problem = refused(server.http.post("/api/generate", json=body), 422, "validation_error")
    assert words in problem["detail"], problem
    assert refused(server.http.post("/api/generate", json=body, headers=ASYNC), 422, "validation_error") == problem


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "8"},
        {"max_tokens": True},
        {"max_tokens": None},
        {"max_tokens": 10**400},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": "hot"},
        {"temperature": "0.5"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"top_k": -1},
        {"top_k": 2.5},
        {"seed": -1},
        {"seed": 2**32},
        {"seed": "7"},
        {"seed": False},
        {"stop": ""},
        {"stop": [""]},
        {"stop": ["a", 1]},
        {"stop": {"a": 1}},
        {"stop": ["x"] * 17},
        {"repetition_penalty": 0},
        {"repetition_penalty": 2.5},
        {"repetition_penalty": float("-inf")},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": float("nan")},
        {"logit_bias": {"the": 1}},
        {"logit_bias": {"01": 1}},
        {"logit_bias": {"7": 101}},
        {"logit_bias": [[7, 1]]},
        {"logit_bias": {str(number): 1 for number in range(1025)}},
        {"logprobs": 21},
        {"logprobs": True},
        {"response_format": "json"},
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "two words", "schema": {}}}},
        {"raw": "yes"},
    ],
    ids=lambda options: str(options)[:60],
)
def test_an_option_of_the_wrong_type_or_out_of_range_is_refused_by_name(
    server: Server, options: dict[str, Any]
) -> None:
    body = json.dumps(asked(options=options))  # with NaN and Infinity, which many clients write
    problem = refused(server.http.post("/api/generate", content=body, headers=JSON), 422, "validation_error")
    name = next(iter(options))
    assert f"options.{name}" in problem["detail"]
    assert f"options.{name}" in problem["fields"][0]


@pytest.mark.parametrize(
    ("body", "wrong", "right"),
    [
        (asked(promt="x"), "promt", "prompt"),
        (asked(modle="x"), "modle", "model"),
        (asked(Device="cpu"), "Device", "device"),
        (asked(options={"max_token": 3}), "options.max_token", "max_tokens"),
        (asked(options={"temprature": 3}), "options.temprature", "temperature"),
        ({"messages": [{"role": "user", "content": "x", "contents": "x"}]}, "messages.0.contents", "content"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(
    server: Server, body: dict[str, Any], wrong: str, right: str
) -> None:
    problem = refused(server.http.post("/api/generate", json=body), 422, "validation_error")
    assert f"'{wrong}'" in problem["detail"]
    assert f"'{right}'" in problem["remedy"]


@pytest.mark.parametrize(
    "place",
    [
        '{"prompt": "cut here @"}',
        '{"prompt": "x", "options": {"stop": "@"}}',
        '{"prompt": "x", "options": {"stop": ["a", "@"]}}',
        '{"prompt": "x", "options": {"@": 1}}',
        '{"prompt": "x", "@": 1}',
        '{"prompt": "x", "device": "@"}',
        '{"prompt": "x", "model": "@"}',
        '{"prompt": "x", "task": "@"}',
        '{"prompt": "x", "inputs": {"@": "y"}}',
        '{"prompt": "x", "inputs": {"y": "@"}}',
        '{"messages": [{"role": "user", "content": "cut here @"}]}',
        '{"messages": [{"role": "@", "content": "x"}]}',
    ],
)
@pytest.mark.parametrize("half", ["\\ud83d", "\\udc00"])
@pytest.mark.parametrize("stream", [False, True], ids=["waiting", "stream"])
def test_half_an_emoji_anywhere_is_refused_and_named(server: Server, place: str, half: str, stream: bool) -> None:
    body = place.replace("@", half)
    if stream:
        body = body[:-1] + ', "stream": true}'
    problem = refused(server.http.post("/api/generate", content=body, headers=JSON), 422, "validation_error")
    assert "Unicode" in problem["detail"]
    path = [word for word in ("prompt", "stop", "options", "device", "model", "task", "inputs", "messages.0.content")]
    assert any(word in problem["detail"] for word in [*path, "messages.0.role", half]), problem
    assert server.http.get("/api/jobs").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"prompt=hello", 400, "bad_json"),
        (b'{"prompt": "caf\xe9"}', 400, "bad_json"),
        (Path(__file__).with_name("cases").joinpath("prompts/not_utf8.txt").read_bytes(), 400, "bad_json"),
        (b'{"prompt": "x"} trailing', 400, "bad_json"),
        (json.dumps(asked()).encode("utf-16"), 400, "bad_json"),
        (json.dumps(asked()).encode("utf-16-le"), 400, "bad_json"),
        (json.dumps(asked()).encode("utf-32"), 400, "bad_json"),
        (b"[" * 100_000, 400, "bad_json"),
        (b'{"prompt":"x","options":{"seed":' + b"9" * 5000 + b"}}", 400, "bad_json"),
        (b"[]", 422, "validation_error"),
        (b"null", 422, "validation_error"),
        (b'"x"', 422, "validation_error"),
        (b"1e999", 422, "validation_error"),
        (b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}", 422, "validation_error"),
        (b'{"prompt":"x","options":' + b'{"a":' * 900 + b"1" + b"}" * 901, 422, "validation_error"),
        (b'{"prompt":"x","inputs":' + b'{"a":' * 900 + b"1" + b"}" * 901, 422, "validation_error"),
    ],
    ids=range(18),
)
def test_a_body_that_is_no_request_is_refused_and_never_a_failure(
    server: Server, body: bytes, status: int, code: str
) -> None:
    refused(server.http.post("/api/generate", content=body, headers=JSON), status, code)


def test_of_a_key_that_stands_twice_the_last_counts(server: Server) -> None:
    body = b'{"prompt": "a", "options": {"max_tokens": 1}, "prompt": "b"}'
    answer = server.http.post("/api/generate", content=body, headers=JSON)
    assert answer.status_code == 200
    assert answer.json()["request"]["prompt"] == "b"


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_body_beyond_the_limit_is_refused_with_the_limit(server: Server, chunked: bool) -> None:
    body = json.dumps({"prompt": "x" * 8_400_000}).encode()
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    answer = server.http.post("/api/generate", content=pieces if chunked else body, headers=JSON)
    assert "8388608" in refused(answer, 413, "payload_too_large")["detail"]


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "application/jsonp"]
)
def test_a_body_that_is_not_called_json_is_refused(server: Server, kind: str) -> None:
    answer = server.http.post("/api/generate", content=json.dumps(asked()), headers={"Content-Type": kind})
    refused(answer, 415, "unsupported_media_type")


def test_a_body_without_a_type_is_refused(server: Server) -> None:
    refused(server.http.post("/api/generate", content=json.dumps(asked())), 415, "unsupported_media_type")


def test_json_may_name_its_charset(server: Server) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert server.http.post("/api/generate", content=json.dumps(asked()), headers=headers).status_code == 200


def test_stream_and_respond_async_exclude_each_other(server: Server) -> None:
    answer = server.http.post("/api/generate", json=asked(stream=True), headers=ASYNC)
    assert "stream" in refused(answer, 422, "validation_error")["detail"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["gpt-9", "smollm2", "a\0b", "no such model"])
def test_an_unknown_model_is_refused_with_the_known_ones(server: Server, model: str, stream: bool) -> None:
    answer = server.http.post("/api/generate", json=asked(model=model, stream=stream))
    assert MODEL in refused(answer, 404, "unknown_model")["valid"]


@pytest.mark.parametrize("model", ["../etc/passwd", "/etc/passwd", "/proc/self/environ", "models/../../x.gguf"])
def test_a_model_path_outside_the_model_folders_is_refused_whether_it_exists_or_not(server: Server, model: str) -> None:
    problem = refused(server.http.post("/api/generate", json=asked(model=model)), 422, "validation_error")
    assert "folder" in problem["detail"] + problem["remedy"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("device", ["warp", "cuda:64", "cuda:-1", "cuda:1:2", "gpu:0", "cuda:x", "cuda:", " ", "cpu\0"])
def test_an_unknown_device_is_refused_with_the_known_ones(server: Server, device: str, stream: bool) -> None:
    answer = server.http.post("/api/generate", json=asked(device=device, stream=stream))
    problem = refused(answer, 404, "unknown_device")
    assert {"auto", "cpu"} <= set(problem["valid"])
    assert "cpu" in problem["remedy"]


# Aliases and fallback


@pytest.mark.parametrize(
    ("word", "resolved"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("cpu:0", "cpu"),
        ("auto", "cpu"),
        ("AUTO", "cpu"),
        ("gpu", None),
        ("GPU", None),
        ("npu", None),
        ("cuda", "cuda:0"),
        ("CUDA:0", "cuda:0"),
        ("cuda:63", "cuda:63"),
        ("dml", "directml:0"),
        ("DML:2", "directml:2"),
        ("rocm", "rocm:0"),
        ("mps", "mps"),
        ("onnx_dml:1", "onnx-directml:1"),
        ("DmlExecutionProvider", "onnx-directml:0"),
        ("dmlexecutionprovider", "onnx-directml:0"),
        ("CUDAExecutionProvider", "onnx-cuda:0"),
        ("TensorrtExecutionProvider", "onnx-tensorrt:0"),
        ("TensorRTExecutionProvider", "onnx-tensorrt:0"),
        ("tensorrt", "onnx-tensorrt:0"),
        ("openvino", "onnx-openvino:0"),
        ("webgpu", "onnx-webgpu:0"),
        ("coreml", "onnx-coreml"),
        ("qnn", "onnx-qnn"),
        ("vitisai", "onnx-vitisai"),
        ("migraphx", "onnx-migraphx:0"),
    ],
)
def test_a_word_for_a_device_is_resolved_and_kept_as_it_was_sent(
    server: Server, word: str, resolved: str | None
) -> None:
    receipt = server.generate(prompt="Hi.", device=word, options={"max_tokens": 1})["receipt"]
    assert (receipt["asked"], receipt["resolved"], receipt["used"]) == (word, resolved, "cpu")
    assert receipt["fell_back"] is (resolved != "cpu")
    assert receipt["resolved_reason"].endswith(".")


def test_an_alias_that_names_an_engine_sets_it(server: Server) -> None:
    problem = refused(server.http.post("/api/generate", json=asked(device="onnx")), 422, "model_incompatible")
    assert "onnx-genai" in problem["detail"]


def test_a_job_for_a_missing_gpu_runs_on_the_cpu_and_says_so_everywhere(server: Server) -> None:
    events = list(stream_events(server, asked(device="cuda:0")))
    fallback = next(event for event in events if event.event == "fallback").data
    assert (fallback["from"], fallback["to"], fallback["code"]) == ("cuda:0", "cpu", "device_not_ready")
    assert "CUDA" in fallback["reason"]
    receipt = events[-1].data["receipt"]
    assert (receipt["asked"], receipt["resolved"], receipt["used"]) == ("cuda:0", "cuda:0", "cpu")
    assert receipt["fell_back"] is True
    assert "cuda:0" in receipt["reason"] and "device_not_ready" in receipt["reason"]
    tried = [(attempt["device"], attempt["error"]) for attempt in receipt["attempts"]]
    assert tried == [("cuda:0", "device_not_ready"), ("cpu", None)]
    job_id = events[-1].data["job_id"]
    line = next(line for line in server.log.read_text().splitlines() if "fallback" in line and job_id in line)
    assert "cuda:0" in line and "cpu" in line and "device_not_ready" in line


def test_the_policy_any_ends_on_the_cpu_here(server: Server) -> None:
    job = server.generate(**asked(device="onnx-cuda:0", fallback="any"))
    assert (job["status"], job["receipt"]["used"], job["receipt"]["fell_back"]) == ("done", "cpu", True)


@pytest.mark.parametrize("device", ["cuda:0", "gpu", "npu", "cpu:7"])
@pytest.mark.parametrize("form", ["waiting", "async", "stream"])
def test_the_policy_never_refuses_a_device_that_is_not_ready(server: Server, device: str, form: str) -> None:
    body = asked(device=device, fallback="never", stream=form == "stream")
    answer = server.http.post("/api/generate", json=body, headers=ASYNC if form == "async" else {})
    assert device in refused(answer, 409, "device_not_ready")["detail"]


def test_the_policy_never_lets_a_ready_device_work(server: Server) -> None:
    job = server.generate(**asked(device="cpu", fallback="never"))
    assert (job["status"], job["receipt"]["fell_back"]) == ("done", False)


# The receipt


def test_the_receipt_names_its_evidence(server: Server) -> None:
    receipt = server.generate(**asked(device="cpu"))["receipt"]
    placement = receipt["placement"]
    assert placement["on_device"] == 1.0
    assert [(part["where"], part["share_of_nodes"], part["share_of_time"]) for part in placement["parts"]] == [
        ("cpu", 1.0, None)
    ]
    assert "buffer" in placement["evidence"] and "MiB" in placement["evidence"]
    assert (receipt["engine"], receipt["runtime"], receipt["hardware_id"]) == ("llama.cpp", "base", "cpu:0")
    assert receipt["versions"]["xllamacpp"]
    assert receipt["model_file"].endswith(".gguf") and "/" not in receipt["model_file"]
    assert receipt["chat_template"] == "model"
    assert receipt["threads"] >= 1
    assert receipt["batched"] is False
    assert receipt["reason"] is None


def test_the_worker_of_the_receipt_is_a_living_child_of_the_server(server: Server) -> None:
    pid = server.generate(**asked(device="cpu"))["receipt"]["worker_pid"]
    status = Path(f"/proc/{pid}/status").read_text()
    assert f"PPid:\t{server.process.pid}\n" in status


def test_the_memory_of_the_receipt_is_that_of_a_process_with_the_model(server: Server, model_file: Path) -> None:
    memory = server.generate(**asked(device="cpu"))["receipt"]["memory"]
    size = model_file.stat().st_size
    assert size < memory["before_bytes"] <= memory["peak_bytes"] < 20 * size
    assert size < memory["after_bytes"] <= memory["peak_bytes"]


def test_the_times_of_the_receipt_add_up_and_give_the_rate(server: Server) -> None:
    receipt = server.generate(prompt="Hi.", options={"max_tokens": 12, "temperature": 0})["receipt"]
    times, counts = receipt["times"], receipt["counts"]
    assert all(value >= 0 for value in times.values())
    assert times["first_token_s"] < times["run_s"]
    parts = times["queued_s"] + times["load_s"] + times["run_s"]
    assert parts <= times["total_s"] <= parts + 2
    assert counts["tokens"] == 12
    assert counts["prompt_tokens"] > counts["cached_tokens"] >= 0
    assert receipt["rate"]["unit"] == "tokens/s"
    expected = (counts["tokens"] - 1) / (times["run_s"] - times["first_token_s"])
    assert receipt["rate"]["value"] == pytest.approx(expected)


def test_the_receipt_tells_the_seed_that_was_drawn(server: Server) -> None:
    drawn = {server.generate(**asked())["receipt"]["seed"] for _ in range(3)}
    assert len(drawn) == 3 and all(0 <= seed < 2**32 for seed in drawn)
    assert server.generate(**asked(options={**SHORT, "seed": 0}))["receipt"]["seed"] == 0


def test_waiting_behind_another_job_counts_as_queued(server: Server) -> None:
    first = server.http.post("/api/generate", json=asked(options={"max_tokens": 24, "temperature": 0}), headers=ASYNC)
    second = server.generate(**asked())
    assert server.until(first.json()["id"], *TERMINAL)["status"] == "done"
    run_s = server.job(first.json()["id"])["receipt"]["times"]["run_s"]
    assert second["receipt"]["times"]["queued_s"] > run_s / 2


# Idempotency


def test_the_same_idempotency_key_gives_the_same_job_in_every_form(server: Server) -> None:
    headers = {"Idempotency-Key": "same-job"}
    body = asked(prompt="Only once.")
    first = server.http.post("/api/generate", json=body, headers=headers).json()
    assert server.http.post("/api/generate", json=body, headers=headers).json() == first
    again = server.http.post("/api/generate", json=body, headers={**headers, **ASYNC})
    assert (again.status_code, again.headers["location"]) == (202, f"/api/jobs/{first['id']}")
    with server.http.stream("POST", "/api/generate", json={**body, "stream": True}, headers=headers) as answer:
        assert list(read_events(answer.iter_lines())) == follow(server, first["id"])


def test_the_same_idempotency_key_with_another_body_is_refused(server: Server) -> None:
    headers = {"Idempotency-Key": "other-body", **ASYNC}
    first = server.http.post("/api/generate", json=asked(prompt="One."), headers=headers).json()
    answer = server.http.post("/api/generate", json=asked(prompt="Two."), headers=headers)
    assert first["id"] in refused(answer, 422, "validation_error")["detail"]
    server.until(first["id"], "done")


def test_no_answer_lacks_the_id_of_its_job(server: Server) -> None:
    forms: list[dict[str, str]] = [{}, ASYNC, {"Idempotency-Key": "id"}, {"Idempotency-Key": "id"}]
    ids = [server.http.post("/api/generate", json=asked(), headers=headers).headers["x-job-id"] for headers in forms]
    assert len(set(ids)) == 3 and ids[2] == ids[3]
    server.until(ids[1], "done")
