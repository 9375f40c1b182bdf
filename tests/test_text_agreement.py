"""The comparison of a text model with the processor: readings, differences, stored verdicts and skipped checks."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.common.errors import DeviceWrong, OutOfMemory
from backend.engines import LoadRequest
from backend.engines._text import agreement, processor_check
from backend.engines._text.agreement import Reading, difference
from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.cpu_sampling import HostSampling
from backend.engines._text.processor_check import ProcessorCheck

SIZE = 64
TOKENS = [number * 7 % SIZE for number in range(400)]
Change = Callable[["Recalling", int, int, Any], Any]


class Recalling:
    """A batch model whose logits depend on all tokens of a row. `change` spoils them."""

    prefill_chunk_tokens, prefill_batch_tokens = 512, 0

    def __init__(self, rows: int = 2, change: Change = lambda model, row, tokens, logits: logits) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self.calls = 0
        self._change = change
        self._sampling = HostSampling()
        self._weights = np.random.default_rng(1).standard_normal((SIZE, SIZE)) * 2

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        self.rows[row] = []
        self._sampling.add(sequence)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        assert len(ids) <= self.prefill_chunk_tokens and sequence.length == len(self.rows[row])
        self.rows[row] += ids
        return self._step(row, len(ids), sequence) if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        raise AssertionError("the check prefills row by row")

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        for row, sequence in enumerate(sequences):
            self.rows[row].append(sequence.last_token)
        return [self._step(row, 1, sequence) for row, sequence in enumerate(sequences)]

    def move_row(self, source: int, target: int, length: int) -> None:
        self.rows[target] = self.rows[source][:length]

    def force_token(self, row: int, token: int) -> None:
        self.calls += 1

    def _step(self, row: int, tokens: int, sequence: TextSequence) -> SampledToken:
        recent = self._weights[self.rows[row][-3:]].sum(0) + self._weights[len(self.rows[row]) % SIZE]
        logits = self._change(self, row, tokens, recent.astype(np.float32))
        return self._sampling.sample(sequence, logits)


def reading(rows: int = 2, change: Change | None = None, context: int = 1000) -> Reading:
    model = Recalling(rows, change) if change else Recalling(rows)
    return agreement.read(model, TOKENS, context, rows)


def test_both_prompts_are_read_the_same_alone_and_together() -> None:
    alone, together = reading(1), reading(2)
    assert (len(alone.short), len(alone.long)) == (agreement.STEPS + 1, agreement.STEPS + 1)
    found = agreement.compare(alone, together, "m", "cuda:0")
    assert (found.steps, found.difference) == (18, 0.0)
    assert agreement.check_consistency(together, "m", "cuda:0").difference == 0


def test_a_small_context_shortens_the_prompts_and_few_tokens_are_repeated() -> None:
    short, long = agreement.prompt_tokens([1, 2, 3], 64)
    assert (len(short), len(long)) == (32, 63) and set(long) == {1, 2, 3}
    assert agreement.prompt_tokens([], 4096)[1] == [0] * 308
    assert reading(2, context=64).long


def test_the_long_prompt_is_left_out_where_it_would_take_too_long() -> None:
    times = iter([0.0, 3.0])
    slow = agreement.read(Recalling(1), TOKENS, 1000, 1, budget_s=15, clock=lambda: next(times))
    assert not slow.long
    assert agreement.compare(slow, reading(2), "m", "cuda:0").steps == agreement.STEPS + 1


def listed(*logprobs: float, first: int = 0) -> SampledToken:
    return SampledToken(first, 1.0, logprobs[0], tuple(enumerate(logprobs, first)))


@pytest.mark.parametrize(
    ("other", "low", "high"),
    [
        (listed(-0.1, -2.4), 0.0, 0.0),
        (listed(-0.2, -2.4), 0.08, 0.1),
        (listed(-5.0, -0.1), 4.0, 5.0),
        (listed(-1.0, -1.2, first=7), 0.9, 1.2),  # others are listed: these are at most as likely as -1.2
        (listed(math.nan, -2.4), math.inf, math.inf),
        (SampledToken(0, math.inf, -0.1, ((0, -0.1),)), math.inf, math.inf),
        (SampledToken(0, 1.0), math.inf, math.inf),
    ],
)
def test_the_difference_is_the_mean_of_log_probabilities_by_probability(
    other: SampledToken, low: float, high: float
) -> None:
    assert low <= difference(listed(-0.1, -2.4), other) <= high


def noisy(scale: float) -> Change:
    random = np.random.default_rng(2)
    return lambda model, row, tokens, logits: logits + (random.standard_normal(SIZE) * scale).astype(np.float32)


def test_rounding_is_no_difference() -> None:
    found = agreement.compare(reading(), reading(change=noisy(0.05)), "m", "cuda:0")
    assert 0.01 < found.mean < found.difference < 0.2


FAULTS: list[tuple[str, Change, str]] = [
    ("noise", noisy(3.0), "prompt.*not the processor's"),
    ("halved", lambda model, row, tokens, logits: logits / 2, "not the processor's"),
    ("long prompts", lambda model, row, tokens, logits: logits * (tokens < 256), "after the long prompt, "),
    ("second row", lambda model, row, tokens, logits: logits * (row == 0), "after the long prompt"),
    ("decode", lambda model, row, tokens, logits: logits[::-1].copy() if tokens == 1 else logits, "1 further tokens"),
    ("late", lambda model, row, tokens, logits: logits * (-1 if model.calls > 10 and tokens == 1 else 1), "6 further"),
    ("slight everywhere", noisy(0.55), "over 18 steps|prompt"),
]


@pytest.mark.parametrize(("name", "change", "where"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_wrong_numbers_are_found_beside_the_processor(name: str, change: Change, where: str) -> None:
    with pytest.raises(DeviceWrong, match=where) as failure:
        agreement.compare(reading(1), reading(change=change), "m.gguf", "cuda:0")
    assert failure.value.detail.startswith("cuda:0 computes m.gguf wrongly: ") and "is allowed." in failure.value.detail
    assert "Update the driver of cuda:0" in failure.value.remedy


INNER: list[tuple[str, Change, str]] = [
    ("nan", lambda model, row, tokens, logits: logits * np.float32(np.nan), "NaN or infinite"),
    ("nan late", lambda model, row, tokens, logits: logits * np.float32(np.nan if model.calls > 8 else 1), "further"),
    ("decode", lambda model, row, tokens, logits: logits[::-1].copy() if tokens == 1 else logits, "one by one"),
    ("repeated", lambda model, row, tokens, logits: logits[::-1].copy() if tokens == 24 and model.calls else logits,
     "before"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "where"), INNER, ids=[name for name, _, _ in INNER])
def test_some_wrong_numbers_are_found_without_a_copy(name: str, change: Change, where: str) -> None:
    with pytest.raises(DeviceWrong, match=where):
        agreement.check_consistency(reading(change=change), "m", "cuda:0")


@pytest.fixture
def request_(tmp_path: Path) -> LoadRequest:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"1234")
    return LoadRequest("cuda:0", str(tmp_path / "model"), 400, 1, 2, check_bytes=1000, verdict_dir=str(tmp_path / "v"))


def checked(request: LoadRequest, copy_bytes: int = 10, versions: str = "1", engine: str = "e") -> ProcessorCheck:
    """Run a check, if it is due, of a model that computes well."""
    check = ProcessorCheck(engine, request, "m", {"library": versions}, copy_bytes)
    if check.is_due:
        check.read_copy_model(lambda: Recalling(1), TOKENS)
        check.judge_model(Recalling(2), TOKENS)
    return check


def test_a_verdict_is_remembered_for_the_same_model_device_driver_and_versions(request_: LoadRequest) -> None:
    first = checked(request_)
    assert first.evidence == "Over 18 tokens its log probabilities were within 0 of the processor's (mean 0)."
    again = ProcessorCheck("e", request_, "m", {"library": "1"}, 10)
    assert not again.is_due and again.evidence.startswith(first.evidence + " Checked at 20")
    others = [
        ProcessorCheck("e", request_, "m", {"library": "2"}, 10),
        ProcessorCheck("f", request_, "m", {"library": "1"}, 10),
        ProcessorCheck("e", replace(request_, driver="551.2"), "m", {"library": "1"}, 10),
        ProcessorCheck("e", replace(request_, device="cuda:1"), "m", {"library": "1"}, 10),
        ProcessorCheck("e", replace(request_, provider_options={"a": "b"}), "m", {"library": "1"}, 10),
    ]
    assert all(other.is_due for other in others)
    weights = Path(request_.model_path) / "weights"
    os.utime(weights, ns=(1, 1))
    assert ProcessorCheck("e", request_, "m", {"library": "1"}, 10).is_due


@pytest.mark.parametrize("content", ["", "{", "[]", '{"evidence": 5, "at": "x"}', "null"])
def test_a_damaged_verdict_is_none(request_: LoadRequest, content: str) -> None:
    checked(request_)
    [file] = Path(request_.verdict_dir).iterdir()
    assert set(json.loads(file.read_text())) == {"evidence", "at"}
    file.write_text(content)
    assert checked(request_).evidence.endswith("(mean 0).")


def test_a_wrong_device_is_not_remembered(request_: LoadRequest) -> None:
    check = ProcessorCheck("e", request_, "m", {}, 10)
    check.read_copy_model(lambda: Recalling(1), TOKENS)
    with pytest.raises(DeviceWrong):
        check.judge_model(Recalling(2, noisy(3.0)), TOKENS)
    assert ProcessorCheck("e", request_, "m", {}, 10).is_due


def test_the_processor_is_not_compared_with_itself(request_: LoadRequest) -> None:
    check = ProcessorCheck("e", replace(request_, device="cpu"), "m", {}, 10)
    assert not check.is_due and check.evidence == ""


@pytest.mark.parametrize(
    ("copy_bytes", "free", "reason"),
    [
        (5_000_000_000, 10**12, "needs about 5 GB, more than text.check_memory \\(1e-06 GB\\)"),
        (900, 1000, "a copy there needs about .* are available"),
    ],
)
def test_a_copy_that_is_too_large_is_left_out_with_the_reason(
    request_: LoadRequest, monkeypatch: pytest.MonkeyPatch, copy_bytes: int, free: int, reason: str
) -> None:
    monkeypatch.setattr(processor_check, "memory_free_bytes", lambda: free)
    check = checked(request_, copy_bytes)
    assert check.evidence.startswith("Its next-token probabilities were not compared with the processor's: ")
    assert re.search(reason, check.evidence) and check.evidence.endswith("Prefill and decoding agree within 0.")
    assert ProcessorCheck("e", request_, "m", {"library": "1"}, copy_bytes).is_due, "it may fit next time"


@pytest.mark.parametrize("error", [OutOfMemory("The copy needs more.", "x"), RuntimeError("no kernel"), MemoryError()])
def test_a_copy_that_fails_is_left_out_with_the_reason(request_: LoadRequest, error: Exception) -> None:
    def fail() -> Recalling:
        raise error

    check = ProcessorCheck("e", request_, "m", {}, 10)
    check.read_copy_model(fail, TOKENS)
    check.judge_model(Recalling(2), TOKENS)
    assert "a copy there failed: " in check.evidence


def test_without_a_folder_it_checks_each_time(request_: LoadRequest) -> None:
    request = replace(request_, verdict_dir="")
    checked(request)
    assert ProcessorCheck("e", request, "m", {"library": "1"}, 10).is_due
