"""A folder of ONNX Runtime GenAI on a real server: recognised, run, shared by jobs, and its limits reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_genai
from tests.service import Server, furnished, start_server

GREEDY = {"temperature": 0, "max_tokens": 60}


@pytest.fixture(scope="module")
def genai(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("genai")
    data = furnished(folder / "data", model_file)
    tiny_genai.make(data / "models" / "Tiny One")
    cut = tiny_genai.make(data / "models" / "cut")
    (cut / "model.onnx").write_bytes(tiny_genai.graph()[:9000])
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tiny_genai.make(data / "models" / "endless", template=endless)
    config = folder / "config.yaml"
    config.write_text("text: {slots: 3, context_tokens: 400}\n")
    server = start_server(data, "--config", str(config))
    server.http.get("/api/devices", params={"wait_s": 60})
    yield server
    assert server.stop() == 0


def models(server: Server) -> dict[str, Any]:
    return {model["id"]: model for model in server.http.get("/api/models").json()["models"]}


def test_folders_among_the_models_are_recognised_and_judged(genai: Server) -> None:
    tiny, cut = models(genai)["tiny-one"], models(genai)["cut"]
    assert (tiny["engines"], tiny["state"], tiny["task"]) == (["onnx-genai"], "ready", "text")
    assert tiny["bytes"] > 100_000
    told = {
        "format": "onnx-genai",
        "context_tokens": tiny_genai.CONTEXT,
        "chat_template": True,
        "architecture": "llama",
    }
    assert told.items() <= tiny["details"].items()
    assert (cut["state"], cut["details"]) == ("broken", {})
    assert "truncated" in cut["reason"] and cut["remedy"]


@pytest.mark.parametrize("device", ["cpu", "onnx"])
def test_it_runs_with_evidence_from_onnx_runtime(genai: Server, device: str) -> None:
    job = genai.generate(model="tiny-one", prompt="Hello", device=device, options=GREEDY)
    receipt = job["receipt"]
    assert (job["status"], receipt["engine"], receipt["used"]) == ("done", "onnx-genai", "cpu")
    assert receipt["placement"]["evidence"].startswith("ONNX Runtime's record of the assignment: 13 of 13 nodes")
    assert receipt["versions"].keys() >= {"onnxruntime", "onnxruntime-genai"}
    assert (receipt["chat_template"], receipt["model_file"]) == ("model", "Tiny One")
    assert receipt["counts"]["tokens"] == 60 or job["output"]["finish_reason"] == "stop"


def test_jobs_that_share_it_say_what_each_says_alone(genai: Server) -> None:
    prompts = ["a", "Tell me of rivers. " * 8, "Why?", "xyz"]

    def said(prompt: str) -> dict[str, Any]:
        return genai.generate(model="tiny-one", prompt=prompt, options={**GREEDY, "max_tokens": 150})

    alone = [said(prompt)["output"]["text"] for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(said, prompts))
    assert [job["output"]["text"] for job in together] == alone
    assert any(job["receipt"]["batched"] for job in together)


def refused(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.http.post("/api/generate", json={"model": "tiny-one", "prompt": "x", **body})
    return {"status": answer.status_code, **answer.json()}


def test_what_it_cannot_is_refused_by_name(genai: Server) -> None:
    problem = refused(genai, options={"response_format": {"type": "json_object"}})
    assert (problem["status"], problem["code"]) == (422, "unsupported_parameter")
    assert "response_format" in problem["detail"] and "onnx-genai" in problem["detail"]


def test_a_bias_for_a_token_that_the_model_lacks_is_refused(genai: Server) -> None:
    problem = refused(genai, options={"logit_bias": {"0": 1, "999999": 1}})
    assert (problem["status"], problem["code"]) == (422, "validation_error")
    assert "no 999999" in problem["detail"]


def test_a_prompt_beyond_the_context_is_refused_with_both_counts(genai: Server) -> None:
    problem = refused(genai, prompt="x" * 500)
    assert (problem["status"], problem["code"]) == (400, "context_length_exceeded")
    assert "has 519 tokens and the context holds 400" in problem["detail"]


def test_an_endless_template_ends_its_job_alone(genai: Server) -> None:
    problem = refused(genai, model="endless")
    assert (problem["status"], problem["code"]) == (422, "model_broken")
    assert "timed out after 5 s" in problem["detail"]
    raw = genai.generate(model="endless", prompt="x", options={**GREEDY, "raw": True, "max_tokens": 3})
    assert (raw["status"], raw["receipt"]["chat_template"]) == ("done", None)
    assert raw["receipt"]["worker_pid"] == problem["job"]["receipt"]["worker_pid"]


def test_a_form_is_chosen_by_its_engine(genai: Server, model_file: Path) -> None:
    id_ = "smollm2-135m-instruct"
    place = tiny_genai.make(genai.data_dir / "models" / "converted" / id_ / "onnx-int8")
    made = {"source": {"bytes": model_file.stat().st_size}, "bytes": 1, "comparison": {"tokens": 9}}
    (place / "touchstone.json").write_text(json.dumps(made))
    assert models(genai)[id_]["engines"] == ["llama.cpp", "transformers", "onnx-genai"]
    ends = {"max_tokens": 2, "temperature": 0}
    own = genai.generate(model=id_, prompt="Hi", options=ends)["receipt"]
    form = genai.generate(model=id_, prompt="Hi", engine="onnx-genai", options=ends)["receipt"]
    assert (own["engine"], own["model_file"]) == ("llama.cpp", model_file.name)
    assert (form["engine"], form["model_file"]) == ("onnx-genai", "onnx-int8")
