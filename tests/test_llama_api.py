"""llama.h by ctypes: layouts that differ from the known ones are refused with a reason, samplers follow the order."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelLoadFailed
from backend.engines._llama import c_api
from backend.engines._llama.c_api import ContextParams, ModelParams, UnknownLayout, check_layout, declare
from backend.engines._llama.library import Library, open_library
from backend.engines._llama.sampling import Candidates, Chain
from backend.engines._text.sampler import Sampler
from backend.tasks.options import parse_options

pytest.importorskip("xllamacpp")
SIZE = 700
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library()


def test_the_real_library_has_the_known_layouts(library: Library) -> None:
    assert library.llama.llama_model_default_params().n_gpu_layers == -1
    assert library.llama.llama_context_default_params().n_ubatch == 512
    assert library.title.startswith(library.build.name) and "llama.cpp 0." in library.title


@pytest.mark.skipif(not ON_X86, reason="the written bytes are counted on x86-64 alone")
@pytest.mark.parametrize(
    ("function", "kind", "known"),
    [
        ("llama_model_default_params", ModelParams, c_api._MODEL_DEFAULTS),
        ("llama_context_default_params", ContextParams, c_api._CONTEXT_DEFAULTS),
    ],
)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_structure_of_another_length_is_refused(
    library: Library, function: str, kind: type[ctypes.Structure], known: Mapping[str, Any], change: int
) -> None:
    fields = [*kind._fields_[:-1]] if change < 0 else [*kind._fields_, ("added", ctypes.c_int64)]
    other = type("Params", (ctypes.Structure,), {"_fields_": fields})
    with pytest.raises(UnknownLayout, match=r"Params has \d+ bytes, \d+ are known"):
        check_layout(getattr(library.llama, function), other, known)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *((ModelParams, name, 7) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((ContextParams, name, 7) for name in ("n_ctx", "n_batch", "n_seq_max", "n_threads", "type_k", "n_samplers")),
        (ModelParams, "use_extra_bufts", False),
        (ModelParams, "devices", 1),
        (ContextParams, "offload_kqv", False),
        (ContextParams, "embeddings", True),
        (ContextParams, "yarn_ext_factor", 1.0),
    ],
)
def test_another_default_is_another_layout(
    monkeypatch: pytest.MonkeyPatch, kind: type[ctypes.Structure], field: str, value: Any
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    known = c_api._MODEL_DEFAULTS if kind is ModelParams else c_api._CONTEXT_DEFAULTS
    check_layout(lambda: kind(**known), kind, known)
    with pytest.raises(UnknownLayout, match=rf"Params\.{field} is .* by default, .* is known"):
        check_layout(lambda: kind(**{**known, field: value}), kind, known)


def test_a_build_without_a_function_is_named_with_the_remedy(library: Library) -> None:
    known = {name: getattr(library.llama, name) for name in c_api._LLAMA if name != "llama_memory_seq_rm"}
    with pytest.raises(ModelLoadFailed, match="newer 9 has another programming interface .*seq_rm") as refused:
        declare(SimpleNamespace(**known), library.ggml, "newer 9")
    assert "Update Touchstone and the runtime" in refused.value.remedy


def test_a_function_with_other_arguments_is_found_by_what_it_does(library: Library) -> None:
    """Builds before 0.6 take no vocabulary size: the arguments are shifted."""
    shifted = SimpleNamespace(
        llama_sampler_init_penalties=lambda size, last, *_: library.llama.llama_sampler_init_penalties(4, 0, 2, 0, 0.5),
        llama_sampler_accept=library.llama.llama_sampler_accept,
        llama_sampler_apply=library.llama.llama_sampler_apply,
        llama_sampler_free=library.llama.llama_sampler_free,
    )
    with pytest.raises(UnknownLayout, match="llama_sampler_init_penalties"):
        c_api._check_penalties(shifted)


# Sampling


@pytest.fixture(scope="module")
def candidates(library: Library) -> Candidates:
    return Candidates(library.llama, SIZE)


@pytest.fixture(scope="module")
def rows() -> Iterator[Any]:
    random = np.random.default_rng(3)
    yield [(random.standard_normal(SIZE) * scale).astype(np.float32) for scale in (1, 30, 0.01)]


def chain(library: Library, options: Mapping[str, Any], seed: int = 1, prompt: tuple[int, ...] = ()) -> Chain:
    return Chain(library.llama, options, seed, prompt, (SIZE, 64))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logit_bias": {"3": 100.0}},
        {"logit_bias": {"3": -100.0, "699": 6.0}},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"repetition_penalty": 0.6, "frequency_penalty": -1.0},
    ],
    ids=str,
)
def test_greedy_choices_are_those_of_the_documented_order(
    library: Library, candidates: Candidates, rows: Any, options: dict[str, Any]
) -> None:
    prompt = (int(rows[0].argmax()), 3, 3, int(rows[1].argmax()))
    given_options = parse_options("text", {"temperature": 0, **options})
    for row in rows:
        mine = Sampler(given_options, 1, prompt).next(row.copy())
        assert candidates.choose(chain(library, given_options, prompt=prompt).handle, memoryview(row)) == mine


@pytest.mark.parametrize(
    "options",
    [{"top_k": 5, "top_p": 1.0}, {"top_k": 0, "top_p": 0.3}, {"top_k": 20, "top_p": 0.8}, {"temperature": 2.0}],
    ids=str,
)
def test_drawn_tokens_are_those_that_the_documented_order_may_draw(
    library: Library, candidates: Candidates, rows: Any, options: dict[str, Any]
) -> None:
    given_options = parse_options("text", {"temperature": 0.9, **options})
    likely, expected = chain(library, given_options), Sampler(given_options, 1, ())
    drawn = {candidates.choose(likely.handle, memoryview(rows[0])) for _ in range(300)}
    possible = {expected.next(rows[0].copy()) for _ in range(3000)}
    assert drawn <= possible and len(drawn) > 1


def test_the_same_seed_draws_the_same_tokens(library: Library, candidates: Candidates, rows: Any) -> None:
    given_options = parse_options("text", {"temperature": 1.5, "top_k": 0, "top_p": 1.0})

    def draw(seed: int) -> list[int]:
        sampler = chain(library, given_options, seed)
        return [candidates.choose(sampler.handle, memoryview(rows[0])) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2) and draw(c_api.RANDOM_SEED) == draw(c_api.RANDOM_SEED)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probabilities_are_those_of_all_logits(candidates: Candidates, rows: Any, count: int) -> None:
    for row in rows:
        total, likeliest = candidates.likeliest(memoryview(row), count)
        exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
        best = np.argsort(-exact, kind="stable")[:count]
        assert total == pytest.approx(np.logaddexp.reduce(row.astype(np.float64)), abs=1e-4)
        assert [token for token, _ in likeliest] == best.tolist()
        assert [value for _, value in likeliest] == pytest.approx(exact[best].tolist(), abs=1e-4)


@given(st.sets(st.integers(0, SIZE - 1), max_size=12), st.sampled_from([0.0, 1.0]))
@settings(max_examples=30, deadline=None)
def test_a_mask_leaves_only_its_tokens(allowed: set[int], temperature: float) -> None:
    library = open_library()
    row: Any = np.random.default_rng(len(allowed)).standard_normal(SIZE).astype(np.float32)
    mask = bytes(200 * (token in allowed) for token in range(SIZE))
    sampler = chain(library, parse_options("text", {"temperature": temperature}))
    token = Candidates(library.llama, SIZE).choose(sampler.handle, memoryview(row), mask)
    best = max(allowed, key=lambda each: row[each], default=-1)
    assert token == best if temperature == 0 else token in (allowed or {-1})


def test_every_opened_library_has_the_log_of_the_process() -> None:
    """The library has one callback: a second log would take the lines of the first."""
    opened = [open_library(cards) for cards in (False, True)]
    assert opened[0].log is opened[1].log
    with opened[0].log.collected() as lines:
        opened[0].log.callback(2, b"a line\n", None)
    assert lines == ["a line\n"]
