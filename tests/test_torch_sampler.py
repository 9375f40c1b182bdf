"""Sampling on the device equals sampling on the CPU for the same logits, options and seed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backend.engines._text.sampler import Sampler
from backend.engines._torch.gpu_sampler import TorchSampler, Traits, traits_of
from backend.tasks.options import parse_options
from tests.faulty_stacks.environments import make

SIZE, STEPS, PROMPT = 300, 40, [1, 2, 2, 3]
WISHES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 2.0, "top_k": 5, "top_p": 1.0},
    {"temperature": 1.5, "top_k": 0, "top_p": 0.3},
    {"temperature": 0, "repetition_penalty": 1.7},
    {"temperature": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": {"7": 4.0, "9": -100}},
]


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The stand-in, for this file alone."""
    python = make(tmp_path_factory.mktemp("sampler") / "env", {})
    site = next(python.parents[1].rglob("site-packages"))
    before = set(sys.modules)
    sys.path.insert(0, str(site))
    yield importlib.import_module("torch")
    sys.path.remove(str(site))
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "torch":
            del sys.modules[name]


def rounds(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [(random.standard_normal((len(WISHES), SIZE)) * 2).astype(np.float32) for _ in range(STEPS)]


def by_numpy(number: int, logits: list[Any]) -> list[int]:
    sampler = Sampler(parse_options("text", WISHES[number]), 5 + number, PROMPT)
    return [sampler.next(step[number].copy()) for step in logits]


def by_torch(torch: Any, numbers: list[int], logits: list[Any], move: bool = False) -> list[list[int]]:
    """The tokens of some of the wishes in one model."""
    rows = len(numbers) + 1
    sampler = TorchSampler(torch, torch.device("cpu"), rows, STEPS, SIZE)
    wishes = [parse_options("text", WISHES[number]) for number in numbers]
    for row, (number, options) in enumerate(zip(numbers, wishes, strict=True)):
        sampler.assign_row(row, options, 5 + number, PROMPT, STEPS)
    found = []
    for step in logits:
        tokens, _ = sampler.next(torch.from_numpy(step[numbers].copy()), 0, traits_of(wishes, SIZE))
        found.append([token for (token,) in tokens.tolist()])
        if move:
            sampler.move_row(0, rows - 1)
            sampler.assign_row(0, parse_options("text", {"temperature": 0}), 1, [], STEPS)
            sampler.move_row(rows - 1, 0)
    return [list(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("number", range(len(WISHES)), ids=lambda number: "-".join(WISHES[number]))
def test_alone_it_chooses_the_same(torch: Any, number: int) -> None:
    logits = rounds(number)
    assert by_torch(torch, [number], logits) == [by_numpy(number, logits)]


def test_among_others_it_chooses_the_same(torch: Any) -> None:
    logits, numbers = rounds(99), list(range(len(WISHES)))
    assert by_torch(torch, numbers, logits) == [by_numpy(number, logits) for number in numbers]


def test_a_text_that_moves_takes_all_it_wants_with_it(torch: Any) -> None:
    logits = rounds(3)
    for number in range(len(WISHES)):
        assert by_torch(torch, [number], logits, move=True) == [by_numpy(number, logits)]


def test_a_step_does_no_more_than_its_texts_want() -> None:
    plain, drawn = parse_options("text", {"temperature": 0}), parse_options("text", {"top_k": 7, "logprobs": 2})
    assert traits_of([plain], SIZE) == Traits(True, False, False, 1, None)
    assert traits_of([plain, drawn], SIZE) == Traits(False, False, False, 7, 2)
    assert traits_of([parse_options("text", {"top_k": 0})], SIZE).candidates == 0


def test_log_probabilities_are_those_of_the_model(torch: Any) -> None:
    options = parse_options("text", {"temperature": 0, "logprobs": 2, "logit_bias": {"3": 100}})
    sampler = TorchSampler(torch, torch.device("cpu"), 1, 4, 4)
    sampler.assign_row(0, options, 1, [], 4)
    logits = np.log(np.array([[0.1, 0.6, 0.25, 0.05]], np.float32))
    tokens, told = sampler.next(torch.from_numpy(logits), 0, traits_of([options], 4))
    token, highest, own, *rest = told.tolist()[0]
    assert (tokens.tolist(), token, rest[:2]) == ([[3]], 3.0, [1.0, 2.0])
    assert np.allclose([highest, own, *rest[2:]], np.log([0.6, 0.05, 0.6, 0.25]), atol=1e-6)
