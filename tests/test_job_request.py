"""The typed request of a job: its stored form, and requests that earlier versions stored."""

from __future__ import annotations

from typing import Any

import pytest

from backend.jobs.job_request import JobRequest

TEXT: dict[str, Any] = {
    "fallback": "cpu", "engine": None, "prompt": "Hi", "messages": None, "task": "text",
    "model": "tiny", "device": "auto", "options": {"max_tokens": 8, "seed": None},
}  # fmt: skip
TUNE: dict[str, Any] = {
    "fallback": "any", "engine": "torch", "prompt": "a jig", "messages": None, "task": "music", "model": "folk-tunes",
    "device": "auto", "devices": ["cuda:0", "gpu"], "spread": "parallel", "options": {"variations": 4, "seed": 7},
    "understood": {"form": "jig"}, "ignored": [],
}  # fmt: skip
STEMS: dict[str, Any] = {
    "fallback": "never", "engine": None, "prompt": None, "messages": None, "inputs": {"audio": "0" * 32, "x": [1.0]},
    "task": "stems", "model": "two-stems", "device": "cpu", "options": {},
}  # fmt: skip
VECTORS: dict[str, Any] = {
    "fallback": "cpu", "engine": None, "prompt": None, "messages": None, "task": "embeddings",
    "model": "vectors", "device": "auto", "options": {}, "texts": ["a", "b"],
}  # fmt: skip


@pytest.mark.parametrize("row", [TEXT, TUNE, STEMS, VECTORS], ids=lambda row: row["task"])
def test_a_stored_request_is_read_and_written_without_a_change(row: dict[str, Any]) -> None:
    written = JobRequest.from_row(row["task"], row).to_row()
    assert written == row and list(written) == list(row), "the API shows the keys in this order"


def test_the_fields_of_a_request_have_types() -> None:
    tune = JobRequest.from_row("music", TUNE)
    assert tune.device_names == ("cuda:0", "gpu") and tune.variations == 4 and tune.is_shared_out
    assert tune.understood and tune.understood.options == {"form": "jig"}
    stems = JobRequest.from_row("stems", STEMS)
    assert list(stems.input_files()) == ["0" * 32] and stems.device_names == ("cpu",) and not stems.is_shared_out


def test_a_request_to_load_has_no_options() -> None:
    load = JobRequest.from_row("load", {"model": "tiny", "device": "cpu", "engine": None, "fallback": "never"})
    assert (load.task, load.model, load.device, load.fallback, load.options) == ("load", "tiny", "cpu", "never", None)


def test_what_an_earlier_version_did_not_store_gets_its_default() -> None:
    request = JobRequest.from_row("text", {"model": "tiny", "prompt": "Hi", "options": {}})
    assert (request.device, request.fallback, request.engine, request.inputs) == ("auto", "cpu", None, {})
