"""Fixtures: one server for the OpenAI-compatible API, with models for text, tool calls and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.conftest import MODEL
from tests.openai.gguf_variants import TOOL_TEMPLATE, with_fact, with_template
from tests.service import ROOT, Server, furnished, start_server

TINY = ROOT / "tests/cases/gguf/tiny_no_template.gguf"


@pytest.fixture(scope="session")
def v1(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    """The server; its CPU is ready."""
    data_dir = furnished(tmp_path_factory.mktemp("openai") / "data", model_file)
    (data_dir / "models" / "caller.gguf").write_bytes(with_template(model_file.read_bytes(), TOOL_TEMPLATE))
    embedder = with_fact(TINY.read_bytes(), "llama.pooling_type", 1)
    (data_dir / "models" / "embedder.gguf").write_bytes(embedder)
    (data_dir / "models" / "tiny.gguf").write_bytes(TINY.read_bytes())
    running = start_server(data_dir)
    running.http.get("/api/devices", params={"wait_s": 60})
    for model in (MODEL, "caller", "tiny"):  # a stream whose model has to be loaded sends its headers first
        running.generate(model=model, options={"max_tokens": 1})
    yield running
    assert running.stop() == 0


@pytest.fixture
def client_of() -> Iterator[Callable[..., OpenAI]]:
    """Makes official clients, which are closed at the end."""
    made: list[OpenAI] = []

    def make(url: str, **settings: Any) -> OpenAI:
        settings = {"api_key": "any", "max_retries": 0, "timeout": 120, **settings}
        made.append(OpenAI(base_url=f"{url}/v1", **settings))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(v1: Server, client_of: Callable[..., OpenAI]) -> OpenAI:
    """The official client of the shared server."""
    return client_of(v1.url)
