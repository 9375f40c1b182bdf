"""POST /v1/embeddings with an embedding model, and the same as a job with a file."""

from __future__ import annotations

import base64
import io
import math
import struct
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from tests import refusals
from tests.conftest import MODEL
from tests.openai.asking import HELLO, chat_body, completion_body, post, refused
from tests.service import Server

TEXTS = ["hello world", "hello world.", "something else"]


def ask(server: Server, **more: Any) -> dict[str, Any]:
    answer = post(server, "embeddings", {"model": "embedder", "input": TEXTS, **more})
    found: dict[str, Any] = answer.json()
    assert answer.headers["x-job-id"] and answer.headers["x-device-used"] == found["receipt"]["used"] == "cpu"
    return found


def test_a_vector_for_each_text_in_both_forms(v1: Server) -> None:
    found = ask(v1)
    CreateEmbeddingResponse.model_validate(found, strict=True)
    vectors = [entry["embedding"] for entry in found["data"]]
    assert [entry["index"] for entry in found["data"]] == [0, 1, 2]
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-5) for vector in vectors)
    near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
    assert near > far
    packed = [base64.b64decode(entry["embedding"]) for entry in ask(v1, encoding_format="base64")["data"]]
    assert [list(struct.unpack(f"<{len(data) // 4}f", data)) for data in packed] == vectors
    one = ask(v1, input=TEXTS[2])
    assert [entry["embedding"] for entry in one["data"]] == vectors[2:]
    assert (
        found["usage"]["prompt_tokens"] == found["receipt"]["counts"]["prompt_tokens"] > one["usage"]["prompt_tokens"]
    )


def test_it_is_a_job_whose_file_numpy_reads(v1: Server) -> None:
    found = ask(v1)
    job = v1.generate(model="embedder", texts=TEXTS)
    assert (job["status"], job["task"], job["request"]["texts"]) == ("done", "embeddings", TEXTS)
    (file,) = job["output"]["artifacts"]
    rows = np.load(io.BytesIO(v1.http.get(file["url"]).content), allow_pickle=False)
    assert (rows.shape[0], rows.dtype, file["name"]) == (3, np.dtype("<f4"), "embeddings.npy")
    assert rows.tolist() == [entry["embedding"] for entry in found["data"]]


def test_a_model_that_was_not_made_for_it_is_refused_and_so_is_a_chat_with_one_that_was(v1: Server) -> None:
    answer = v1.http.post("/v1/embeddings", json={"model": MODEL, "input": "x"})
    assert MODEL in refused(answer, 422, "model_incompatible", "model")["message"]
    answer = v1.http.post("/v1/chat/completions", json=chat_body(model="embedder"))
    assert "is for embeddings" in refused(answer, 422, "model_incompatible", "model")["message"]
    answer = v1.http.post("/v1/completions", json=completion_body(model="folk-tunes"))
    assert "is for music" in refused(answer, 422, "model_incompatible", "model")["message"]


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"input": ""}, "validation_error", "input"),
        ({"input": []}, "validation_error", "input"),
        ({"input": [1, 2]}, "validation_error", "input"),
        ({"input": [[1], [2]]}, "validation_error", "input"),
        ({"input": ["x"] * 2049}, "validation_error", "input"),
        ({"encoding_format": "int8"}, "validation_error", "encoding_format"),
        ({"dimensions": 4}, "unsupported_parameter", "dimensions"),
    ],
)
def test_what_is_refused(v1: Server, more: dict[str, Any], code: str, param: str) -> None:
    refused(v1.http.post("/v1/embeddings", json={"model": "embedder", "input": "x", **more}), 400, code, param)


def test_a_text_longer_than_the_context_is_refused_with_both_counts(v1: Server) -> None:
    answer = v1.http.post("/v1/embeddings", json={"model": "embedder", "input": ["x", "long " * 2000]})
    error = refused(answer, 400, "context_length_exceeded", "input")
    assert "Text 2 of 2" in error["message"] and "10002 tokens" in error["message"]


def test_texts_belong_to_embeddings_alone(v1: Server) -> None:
    for body in ({"model": "embedder", "messages": HELLO}, {"model": MODEL, "texts": TEXTS}, {"model": "embedder"}):
        answer = v1.http.post("/api/generate", json=body)
        assert "texts" in refusals.refused(answer, 422, "validation_error")["detail"]
    body = {"model": "embedder", "texts": ["x"], "prompt": "x"}
    refusals.refused(v1.http.post("/api/generate", json=body), 422, "validation_error")
