"""Models over HTTP: their states, load and unload jobs, and files that are not models."""

from __future__ import annotations

import gzip
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from backend.common.types import TERMINAL
from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import Server, start_server, wait_for

CASES = Path(__file__).with_name("cases")
SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 2}}


def models(server: Server) -> dict[str, dict[str, Any]]:
    """All models by id."""
    return {model["id"]: model for model in server.http.get("/api/models").json()["models"]}


def finished(server: Server, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Asks for a job about models and returns how it ended."""
    answer = server.http.post(path, json=body or {})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/api/jobs/{answer.json()['id']}"
    return server.until(answer.json()["id"], *TERMINAL)


def test_the_default_model_is_listed_with_its_licence_size_and_options(server: Server, model_file: Path) -> None:
    model = models(server)[MODEL]
    assert (model["state"], model["task"], model["default"]) == ("ready", "text", True)
    assert (model["reason"], model["remedy"]) == (None, None)
    assert model["bytes"] == model_file.stat().st_size
    assert model["licence"] == "Apache-2.0"
    assert model["engines"][0] == "llama.cpp"
    (place,) = [one for one in model["fits"] if one["device"] == "cpu"]
    assert place["fits"] == "yes" and model["bytes"] < place["needed_bytes"] < place["free_bytes"]
    assert model["memory_bytes"]["cpu"] == place["needed_bytes"] and "weights" in place["reason"]
    assert (model["quantization"], model["context_length"]) == ("Q4_1", 8192)
    assert round(model["parameters"] / 1e6) in (134, 135)
    properties = model["options_schema"]["properties"]
    assert set(properties) == {
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "response_format",
        "raw",
        "tools",
        "chat_template_kwargs",
        "reasoning_effort",
        "prompt_tokens",
        "gpu_layers",
    }
    assert all("default" in option and option["description"] for option in properties.values())


def test_the_options_schema_agrees_with_what_the_server_accepts(server: Server) -> None:
    schema = models(server)[MODEL]["options_schema"]
    for options in ({"max_tokens": 1}, {"max_tokens": 0}, {"temperature": 3}, {"top_k": 1, "max_tokens": 1}, {"x": 1}):
        says_yes = not list(jsonschema.Draft202012Validator(schema).iter_errors(options))
        answer = server.http.post("/api/generate", json={"prompt": "x", "options": {"max_tokens": 1, **options}})
        assert (answer.status_code == 200) is says_yes, options


def test_unload_ends_the_process_and_reports_the_memory(server: Server) -> None:
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    job = finished(server, f"/api/models/{MODEL}/unload")
    assert (job["status"], job["task"], job["model"]) == ("done", "unload", MODEL)
    memory = job["receipt"]["memory"]
    assert memory["before_bytes"] > 90_000_000 and memory["after_bytes"] == 0
    assert job["receipt"]["worker_pid"] == pid
    assert not Path(f"/proc/{pid}").exists()


def test_an_unload_right_behind_a_load_unloads_what_that_loads(launch: Callable[..., Server]) -> None:
    server = launch()  # its first proofs still run: even those do not turn the order round
    asked = [server.http.post(f"/api/models/{MODEL}/{what}", json={}).json()["id"] for what in ("load", "unload")]
    loaded, unloaded = (server.until(job, *TERMINAL) for job in asked)
    assert loaded["status"] == unloaded["status"] == "done"
    assert unloaded["receipt"]["worker_pid"] == loaded["receipt"]["worker_pid"]
    assert not Path(f"/proc/{loaded['receipt']['worker_pid']}").exists()


def test_load_makes_the_next_job_start_without_loading(server: Server) -> None:
    finished(server, f"/api/models/{MODEL}/unload")
    loaded = finished(server, f"/api/models/{MODEL}/load", {"device": "cpu"})
    assert (loaded["status"], loaded["task"], loaded["output"]["text"]) == ("done", "load", None)
    assert loaded["receipt"]["times"]["load_s"] > 0
    assert loaded["receipt"]["placement"]["on_device"] == 1.0
    receipt = server.generate(**SHORT)["receipt"]
    assert receipt["times"]["load_s"] == 0.0
    assert receipt["worker_pid"] == loaded["receipt"]["worker_pid"]


def test_a_load_never_falls_back(server: Server) -> None:
    job = finished(server, f"/api/models/{MODEL}/load", {"device": "cuda:0"})
    assert (job["status"], job["error"]["code"]) == ("error", "device_not_ready")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/api/models/nothing/load", {}, 404, "unknown_model"),
        ("/api/models/nothing/unload", {}, 404, "unknown_model"),
        (f"/api/models/{MODEL}/load", {"device": "warp"}, 404, "unknown_device"),
        (f"/api/models/{MODEL}/load", {"device": 1}, 422, "validation_error"),
        (f"/api/models/{MODEL}/load", {"devices": "cpu"}, 422, "validation_error"),
        (f"/api/models/{MODEL}/load", {"engine": "magic"}, 422, "validation_error"),
        (f"/api/models/{MODEL}/load", {"gpu_layers": -1}, 422, "validation_error"),
        ("/api/models/folk-tunes/load", {"gpu_layers": True}, 422, "validation_error"),
        (f"/api/models/{MODEL}/unload", {"x": 1}, 422, "validation_error"),
        ("/api/models", {}, 422, "validation_error"),
        ("/api/models", {"source": "nothing"}, 404, "unknown_model"),
        ("/api/models", {"source": "/etc/passwd"}, 422, "validation_error"),
        ("/api/models", {"source": ""}, 422, "validation_error"),
        ("/api/models", {"source": "\\\\server\\share\\x.gguf"}, 422, "validation_error"),
        ("/api/models", {"source": "../x.gguf"}, 422, "validation_error"),
    ],
)
def test_what_cannot_be_is_refused(server: Server, path: str, body: dict[str, Any], status: int, code: str) -> None:
    refused(server.http.post(path, json=body), status, code)


def test_adding_a_model_that_is_here_is_done_at_once(server: Server) -> None:
    job = finished(server, "/api/models", {"source": MODEL})
    assert (job["status"], job["task"]) == ("done", "download")
    assert models(server)[MODEL]["state"] == "ready"


def test_a_model_that_is_not_here_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    server = start_server(tmp_path / "data")
    try:
        assert models(server)[MODEL]["state"] == "downloadable"
        refused(server.http.post("/api/generate", json=SHORT), 409, "model_not_downloaded")
        refused(server.http.post(f"/api/models/{MODEL}/load", json={}), 409, "model_not_downloaded")
        assert server.http.get("/api/jobs").json()["jobs"] == []
    finally:
        assert server.stop() == 0


def test_own_models_work_without_a_template_and_broken_ones_are_told(data_dir: Path) -> None:
    """A text of a model without a template is a plain completion; a conversation takes the default, and says so."""
    page = data_dir.parent / "page.gguf"
    page.write_text("<!doctype html><title>404</title>")
    cut = data_dir.parent / "cut.gguf"
    cut.write_bytes((CASES / "gguf/tiny_no_template.gguf").read_bytes()[:9000])
    config = data_dir.parent / "config.yaml"
    config.write_text(
        f"models:\n  tiny: {{path: {CASES}/gguf/tiny_no_template.gguf}}\n"
        f"  page: {{path: {page}}}\n  cut: {{path: {cut}}}\n  gone: {{path: {page}.gone}}\n"
    )
    server = start_server(data_dir, "--config", str(config))
    try:
        plain = server.generate(model="tiny", prompt="ab", options={"max_tokens": 3})
        assert (plain["status"], plain["receipt"]["chat_template"]) == ("done", None), plain
        chat = server.generate(model="tiny", messages=[{"role": "user", "content": "ab"}], options={"max_tokens": 3})
        assert (chat["status"], chat["receipt"]["chat_template"]) == ("done", "default"), chat
        known = models(server)
        for name in ("page", "cut", "gone"):
            assert known[name]["state"] == "broken" and known[name]["reason"] and known[name]["remedy"], known[name]
            refused(server.http.post("/api/generate", json={**SHORT, "model": name}), 422, "model_broken")
        job = server.generate(**SHORT)
        assert (job["status"], job["model"]) == ("done", MODEL)
    finally:
        assert server.stop() == 0


def test_an_unused_model_is_unloaded_after_a_while(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_TEXT__KEEP_ALIVE_S": "0.2"})
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    again = server.generate(**SHORT)
    assert again["status"] == "done" and again["receipt"]["times"]["load_s"] > 0


def test_cancel_ends_a_worker_that_cannot_listen(launch: Callable[..., Server]) -> None:
    """A worker that is stopped by a signal hears no cancel: after `cancel_s` it is killed, and the job is cancelled."""
    server = launch(environ={"TOUCHSTONE_SUPERVISION__CANCEL_S": "0.3"})
    body = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000}}
    pid = server.generate(**SHORT)["receipt"]["worker_pid"]
    job_id = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()["id"]
    wait_for(lambda: server.job(job_id)["output"]["text"])
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    server.http.post(f"/api/jobs/{job_id}/cancel")
    assert server.until(job_id, *TERMINAL, limit_s=10)["status"] == "cancelled"
    assert time.monotonic() - start < 8, "before the worker counts as hung"
    assert server.generate(**SHORT)["status"] == "done"


def test_the_recommended_model_is_named_with_its_size_and_reason(server: Server) -> None:
    listed = server.http.get("/api/models").json()
    found = listed["recommended"]
    model = next(model for model in listed["models"] if model["id"] == found["model"])
    assert found["memory_class"] in model["details"]["recommended"] and found["memory_class"].startswith("cpu-")
    assert (found["bytes"], found["licence"], found["state"]) == (model["bytes"], model["licence"], "downloadable")
    assert found["fits"]["device"] == "cpu" and found["fits"]["fits"] == "yes" and found["offer"] is True
    assert found["reason"].startswith("Chosen for ") and found["download_s"] > 10
    (fit,) = model["fits"]
    assert (fit["device"], fit["fits"], fit["engine"]) == ("cpu", "yes", model["engines"][0])
    assert fit["needed_bytes"] > model["bytes"] and "for context and buffers" in fit["reason"]
    assert model["parameters"] and model["quantization"] in model["name"] and model["context_length"] >= 8192


def test_the_list_is_small_when_compressed(server: Server) -> None:
    content = server.http.get("/api/models").content
    assert len(gzip.compress(content, 6)) <= 20_000


@pytest.mark.parametrize("query", ["", "?q=", "?q=x&limit=0", "?q=x&limit=31", "?q=x&task=music", f"?q={'x' * 201}"])
def test_a_search_that_makes_no_sense_is_refused(server: Server, query: str) -> None:
    answer = server.http.get(f"/api/models/search{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
