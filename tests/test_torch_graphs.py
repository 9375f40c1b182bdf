"""Recorded steps give the same texts as single steps while sequences join and leave.

On stand-ins: what a recording would do is done again each time it plays. The real thing is run by hand
(`tests/slow/tiny_models.py --device cuda:0`, `bench torch`).
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from backend.engines import LoadRequest, RunRequest, RunResult, load_engine
from backend.engines._text.batch_decoder import BatchDecoder, SampledToken, TextSequence, TokenUpdate
from backend.engines._torch import cuda_graphs
from backend.engines._torch.cuda_graphs import COMPILED, RECORDED, SINGLY
from backend.tasks.options import parse_options
from tests.faulty_stacks.cases.case import CARD
from tests.faulty_stacks.environments import make
from tests.test_transformers import PACKAGES, PROMPTS, write_model

SLOTS = 4  # three write in a step of four while the fourth reads


class Again:
    """A recording that plays by doing the work again."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.outputs: Any = None

    def play(self) -> None:
        self.outputs = self._work()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Loads the tiny model on the card, with the best way that steps may take."""
    home = tmp_path_factory.mktemp("graphs")
    site = next(make(home / "env", {"cards": [CARD]}, PACKAGES).parents[1].rglob("site-packages"))
    model, before = str(write_model(home / "m")), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setattr(importlib.import_module("torch").cuda, "CUDAGraph", object, raising=False)
        patch.setattr(cuda_graphs, "record_graph", lambda torch, work, pool: (pool, Again(work)))
        landed = (SimpleNamespace(synchronize=lambda: None), None)
        patch.setattr(cuda_graphs.GraphBatchModel, "_copy_to_host", lambda rows, told: (landed[0], told + 0))
        for name in ("CACHE_DIR", "COMPILE_THREADS"):
            patch.setenv(f"TORCHINDUCTOR_{name}", "")
        patch.setattr(sys, "setswitchinterval", lambda seconds: None)
        request = LoadRequest("cuda:0", model, 400, 1, SLOTS)
        engine: Any = load_engine("transformers")
        yield lambda best: engine.load(request, best)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]


def said(session: Any, prompt: str, **options: Any) -> tuple[str, RunResult]:
    """A text and what the engine counted."""
    pieces: list[str] = []

    def emit(event: str, data: dict[str, Any]) -> bool:
        pieces.append(data.get("text", ""))
        return False

    chosen = parse_options("text", {"temperature": 0, "max_tokens": 40, **options})
    result = session.run(RunRequest(None, prompt, chosen, 7, False), emit)
    return "".join(pieces), result


def wishes() -> list[tuple[str, dict[str, Any]]]:
    """Texts of different lengths and options, so that rows move and come back while others write."""
    drawn: dict[str, Any] = {"temperature": 1.0, "top_k": 30}
    odd: list[dict[str, Any]] = [
        {"frequency_penalty": 1.0},
        {"logit_bias": {"113": 4}},
        {"temperature": 1.0, "top_k": 0},
        {"logprobs": 3},
    ]
    asked: list[tuple[str, dict[str, Any]]] = [
        (prompt, {"max_tokens": 5 + 11 * place}) for place, prompt in enumerate(PROMPTS)
    ]
    asked += [(prompt, {**drawn, "max_tokens": 60 - 7 * place}) for place, prompt in enumerate(PROMPTS)]
    asked += [("c" * 140, {**drawn, "presence_penalty": 1.5})]
    return asked + [(f"{place}?", options) for place, options in enumerate(odd)]


def test_recorded_steps_write_the_texts_of_steps_one_by_one(loaded: Callable[[str], Any]) -> None:
    singly, recorded = loaded(SINGLY), loaded(RECORDED)
    recorded._decoder._model.chunk_tokens = 20  # so that others write between the chunks, over rows that read
    expected = [said(singly, prompt, **options)[0] for prompt, options in wishes()]
    assert len(set(expected)) == len(expected)
    assert [said(recorded, prompt, **options)[0] for prompt, options in wishes()] == expected
    with ThreadPoolExecutor(SLOTS + 2) as pool:
        texts = list(pool.map(lambda wish: said(recorded, wish[0], **wish[1])[0], wishes() * 2))
    assert texts == expected * 2


def test_a_text_says_how_its_steps_were_computed(loaded: Callable[[str], Any]) -> None:
    assert said(loaded(RECORDED), "a")[1].evidence == "Steps: 39 as a graph. Not compiled: disabled by request."
    words = "Steps: 39 kernel by kernel. No step is recorded: disabled by request."
    assert said(loaded(SINGLY), "a")[1].evidence == words
    without = said(loaded(COMPILED), "a")[1].evidence
    assert (
        without
        == "Steps: 39 as a graph. Not compiled: Triton, which torch needs to compile, is not installed in this runtime."
    )


def test_what_no_recording_can_hold_runs_kernel_by_kernel(
    loaded: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said(loaded(SINGLY), "b" * 30)[0]

    def refused(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore words")

    monkeypatch.setattr(cuda_graphs, "record_graph", refused)
    text, result = said(loaded(RECORDED), "b" * 30)
    assert text == expected
    why = "RuntimeError: operation not permitted when stream is capturing"
    assert result.evidence == f"Steps: 39 kernel by kernel. No step is recorded: {why}."


def test_a_text_that_is_cancelled_leaves_the_others_as_they_are(loaded: Callable[[str], Any]) -> None:
    session = loaded(RECORDED)
    expected = said(session, "Why?", max_tokens=300)[0]
    options = parse_options("text", {"temperature": 0, "max_tokens": 300})
    heard = threading.Event()

    def stop(event: str, data: dict[str, Any]) -> bool:
        heard.set()
        return event == "token"

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(said, session, "Why?", max_tokens=300) for _ in range(2)]
        result = session.run(RunRequest(None, "Because.", options, 1, False), stop)
        assert [other.result()[0] for other in others] == [expected] * 2
    assert heard.is_set() and result.finish_reason == "cancelled"


class Counting:
    """Rows whose tokens are numbers, on a device that works ahead."""

    prefill_chunk_tokens, prefill_batch_tokens = 8, 0

    def __init__(self) -> None:
        self.log: list[str] = []
        self._begun = 0

    def assign_row(self, row: int, text: TextSequence) -> None:
        self.log.append("prompt")

    def prefill(self, row: int, text: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        return SampledToken(0, 1.0)

    def start_decode(self, texts: Sequence[TextSequence]) -> Callable[[], list[SampledToken]]:
        self._begun += 1
        number = self._begun
        self.log.append(f"begin {number}")

        def wait() -> list[SampledToken]:
            self.log.append(f"look {number}")
            return [SampledToken(number, 1.0) for _ in texts]

        return wait


def texts_of(rows: Any, text: TextSequence) -> list[TokenUpdate]:
    """All its tokens."""
    BatchDecoder(rows, 1).add(text)
    steps: list[TokenUpdate] = []
    while not steps or not steps[-1].finish:
        news = text.updates.get(timeout=10)
        assert isinstance(news, list), news
        steps += news
    return steps


def test_a_step_is_begun_before_the_one_before_it_is_looked_at() -> None:
    rows = Counting()
    steps = texts_of(rows, TextSequence([1], {}, 0, 4, frozenset()))
    assert [step.sampled.token for step in steps] == [0, 1, 2, 3]
    assert rows.log == ["prompt", "begin 1", "begin 2", "look 1", "begin 3", "look 2", "look 3"]


def test_what_was_begun_for_a_text_that_ended_is_not_its_token() -> None:
    rows = Counting()
    steps = texts_of(rows, TextSequence([1], {}, 0, 100, frozenset({2})))
    assert [step.sampled.token for step in steps] == [0, 1, 2]
    assert "begin 3" in rows.log and "look 4" not in rows.log
