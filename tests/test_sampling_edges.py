"""Sampling numbers at the edge of floating point: refused, or defined and computed by every sampler without a fault."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from backend.common.errors import Validation
from backend.engines._llama.library import open_library
from backend.engines._llama.sampling import Candidates, Chain
from backend.engines._text.sampler import Sampler
from backend.engines._torch.gpu_sampler import TorchSampler, traits_of
from backend.tasks.options import parse_options
from backend.tasks.options.songs import SongOptions
from tests.service import Server
from tests.test_torch_sampler import torch  # noqa: F401 (a fixture)

NAN, INFINITY = float("nan"), float("inf")
TINY = [5e-324, 1e-320, 1e-300, 1e-45, 1e-38, 1e-7]
HUGE = [1e38, 1e308, -1e308, 2**63, 2**64, 10**400, -(10**400)]
NO_NUMBERS = [NAN, INFINITY, -INFINITY, "nan", "Infinity", "1", True, False, [1], {}]
NUMBERS = ["temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
COUNTS = ["max_tokens", "top_k", "seed", "logprobs"]
SIZE = 300


def parsed(name: str, value: Any) -> dict[str, Any] | None:
    """Return the options with this value, None if it is refused with a sentence that names the option."""
    given = {"logit_bias": {"7": value}} if name == "logit_bias" else {name: value}
    try:
        return parse_options("text", given)
    except Validation as refused:
        assert f"options.{name}" in refused.detail and len(refused.detail) < 200
        return None


ACCEPTED = [
    (name, value, options)
    for name, value in itertools.product([*NUMBERS, "logit_bias"], [*TINY, 0.01, 1e-3, 1, 2, -2, -100, 100])
    if (options := parsed(name, value)) is not None
]


@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS, "logit_bias"])
def test_what_is_no_number_or_beyond_all_ranges_is_refused(name: str) -> None:
    assert [value for value in [*NO_NUMBERS, *HUGE] if parsed(name, value) is not None] == []


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_a_whole_number(name: str) -> None:
    assert [value for value in [*TINY, 1.0, 0.5] if parsed(name, value) is not None] == []


def test_a_tiny_value_has_the_meaning_of_the_limit_or_is_refused() -> None:
    for value in TINY:
        assert (parsed("temperature", value) or {})["temperature"] == 0
        assert (parsed("top_p", value) or {})["top_p"] == 1e-6
        assert parsed("repetition_penalty", value) is None
        assert SongOptions.model_validate({"temperature": value, "top_p": value}).model_dump()["temperature"] == 0
    assert parse_options("music", {"top_p": 5e-324, "temperature": 1e-320}) | {"top_p": 1e-6, "temperature": 0} == (
        parse_options("music", {"top_p": 5e-324, "temperature": 1e-320})
    )


def logits() -> Any:
    """Of ordinary, large and small size. Equal ones may be drawn in any order."""
    random = np.random.default_rng(3)
    rows = [random.standard_normal(SIZE) * scale for scale in (1, 30, 0.01)]
    return np.array(rows, np.float32)


@pytest.mark.parametrize(("name", "value", "options"), ACCEPTED, ids=lambda value: str(value)[:12])
def test_every_sampler_draws_a_token_and_both_draw_the_same(
    torch: Any,  # noqa: F811
    name: str,
    value: Any,
    options: dict[str, Any],
) -> None:
    prompt = [1, 2, 2, 7]
    for temperature in {0, options["temperature"], 0.8 if name != "temperature" else 0}:
        given = {**options, "temperature": temperature}
        mine = [Sampler(given, 5, prompt).next(row.copy()) for row in logits()]
        found = []
        for row in logits():
            sampler = TorchSampler(torch, torch.device("cpu"), 1, 4, SIZE)
            sampler.assign_row(0, given, 5, prompt, 4)
            with np.errstate(all="raise", under="ignore"):
                chosen, outputs = sampler.next(torch.tensor([row.tolist()]), 0, traits_of([given], SIZE))
            assert all(np.isfinite(outputs.tolist()[0]))
            found.append(chosen.tolist()[0][0])
        assert found == mine and all(0 <= token < SIZE for token in mine), given


@pytest.mark.parametrize(("name", "value", "options"), ACCEPTED, ids=lambda value: str(value)[:12])
def test_llama_cpp_s_samplers_draw_a_token_for_every_accepted_value(
    name: str, value: Any, options: dict[str, Any]
) -> None:
    pytest.importorskip("xllamacpp")
    llama = open_library().llama
    candidates = Candidates(llama, SIZE)
    for row in logits():
        chain = Chain(llama, options, 5, [1, 2, 2, 7], (SIZE, 64))
        assert 0 <= candidates.choose(chain.handle, memoryview(row)) < SIZE


RAW = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"', "true", "9" * 400, "9" * 5000, "1e-999", "[]", "{}"]


@pytest.mark.parametrize("spelling", RAW, ids=lambda spelling: spelling[:12])
def test_no_spelling_of_a_number_reaches_a_worker_or_the_server_s_errors(server: Server, spelling: str) -> None:
    for name in [*NUMBERS, *COUNTS]:
        if spelling == "1e-999" and name in NUMBERS:  # it is 0
            continue
        bodies = {
            "/api/generate": f'{{"prompt": "Hi", "options": {{"{name}": {spelling}}}}}',
            "/v1/completions": f'{{"model": "tiny", "prompt": "Hi", "{name}": {spelling}}}',
            "/v1/chat/completions": f'{{"model": "tiny", "messages": [{{"role": "user", "content": "Hi"}}], '
            f'"{name}": {spelling}}}',
        }
        for path, body in bodies.items():
            if (path, name, spelling) == ("/v1/chat/completions", "logprobs", "true"):
                continue
            answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 422), (path, body[:100], answer.text[:200])
            assert name in answer.text or "JSON" in answer.text


@pytest.mark.parametrize("options", [{"top_p": 5e-324}, {"top_p": 1e-300, "temperature": 1.5}, {"temperature": 1e-320}])
def test_a_tiny_value_is_greedy_on_the_real_engine(server: Server, options: dict[str, Any]) -> None:
    body = {"prompt": "The capital of France is", "options": {"max_tokens": 6, "temperature": 0}}
    greedy = server.generate(**body)["output"]["text"]
    job = server.generate(**{**body, "options": {"max_tokens": 6, "seed": 9, **options}})
    assert (job["status"], job["output"]["text"]) == ("done", greedy), job
