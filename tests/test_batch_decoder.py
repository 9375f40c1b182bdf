"""The batch decoder with a fake model that checks its rows at every call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import WorkerCrashed
from backend.engines._text.batch_decoder import BatchDecoder, SampledToken, TextSequence, TokenUpdate

END = 99
Update = list[TokenUpdate] | int


class SummingModel:
    """A model whose next token is the sum of the tokens in its row, modulo 90, so that a wrong row shows at once."""

    def __init__(self, chunk: int = 4, batch: int = 0) -> None:
        self.prefill_chunk_tokens = chunk
        self.prefill_batch_tokens = batch
        self.rows: dict[int, list[int]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.max_logit = 1.0

    def next(self, row: int) -> SampledToken:
        return SampledToken(sum(self.rows[row]) % 90, self.max_logit)

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        self.rows[row] = [77, 77]  # the leftovers of another text

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        self.calls.append(("prefill", len(ids)))
        self.rows[row] = self.rows[row][: sequence.length] + ids
        return self.next(row) if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        self.calls.append(("prefill_batch", len(sequences)))
        for row, sequence in enumerate(sequences, first):
            self.rows[row] = list(sequence.prompt)
        return [self.next(row) for row in range(first, first + len(sequences))]

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        self.calls.append(("decode", len(sequences)))
        for row, sequence in enumerate(sequences):
            assert len(self.rows[row]) >= sequence.length
            self.rows[row] = [*self.rows[row][: sequence.length], sequence.last_token]
        return [self.next(row) for row in range(len(sequences))]

    def move_row(self, source: int, target: int, length: int) -> None:
        self.rows[target] = self.rows[source][:length]


def alone(prompt: list[int], count: int) -> list[int]:
    """Return the tokens that the model makes of a prompt by itself."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % 90)
    return tokens[len(prompt) :]


def sequence(prompt: list[int], max_tokens: int = 5, **values: Any) -> TextSequence:
    """Return a sequence that ends after this number of tokens, or at END."""
    return TextSequence(prompt, {}, 0, max_tokens, values.pop("stops", frozenset({END})), **values)


def collect(one: TextSequence) -> tuple[list[int], str | None, list[int]]:
    """Wait for a sequence's end. Returns its tokens, why it ended, and the progress of its prefill."""
    tokens: list[int] = []
    progress: list[int] = []
    while True:
        update = one.updates.get(timeout=5)
        if isinstance(update, Exception):
            raise update
        if isinstance(update, int):
            progress.append(update)
            continue
        tokens += [each.sampled.token for each in update]
        if not update or update[-1].finish:
            return tokens, update[-1].finish if update else None, progress


def test_a_text_is_the_tokens_of_its_own_row_up_to_the_limit() -> None:
    one = sequence([1, 2, 3], 6)
    BatchDecoder(SummingModel(), 4).add(one)
    assert collect(one) == (alone([1, 2, 3], 6), "length", [])


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, 89), min_size=1, max_size=9), st.integers(1, 7)), min_size=1, max_size=7
    ),
    rows=st.integers(1, 4),
    batch=st.sampled_from([0, 6, 20]),
)
def test_each_text_among_others_is_the_text_alone(requests: list[tuple[list[int], int]], rows: int, batch: int) -> None:
    decoder = BatchDecoder(SummingModel(batch=batch), rows)
    sequences = [sequence(prompt, count) for prompt, count in requests]
    for one in sequences:
        decoder.add(one)
    for one, (prompt, count) in zip(sequences, requests, strict=True):
        assert collect(one)[:2] == (alone(prompt, count), "length")


def test_a_long_prompt_is_prefilled_in_chunks_and_reports_each_but_the_last() -> None:
    model, one = SummingModel(chunk=4), sequence(list(range(10)), 1)
    BatchDecoder(model, 1).add(one)
    assert collect(one) == (alone(list(range(10)), 1), "length", [4, 8])
    assert [size for name, size in model.calls if name == "prefill"] == [4, 4, 2]


def test_a_prompt_of_exactly_one_chunk_reports_no_progress() -> None:
    one = sequence([1, 2, 3, 4], 1)
    BatchDecoder(SummingModel(chunk=4), 1).add(one)
    assert collect(one)[2] == []


def test_a_stop_token_ends_a_text_and_is_its_last_token() -> None:
    expected = alone([5, 6], 8)
    one = sequence([5, 6], 8, stops=frozenset({expected[2]}))
    BatchDecoder(SummingModel(), 2).add(one)
    assert collect(one) == (expected[:3], "stop", [])


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    expected = alone([5, 6], 2)
    one = sequence([5, 6], 2, stops=frozenset({expected[1]}))
    BatchDecoder(SummingModel(), 2).add(one)
    assert collect(one)[1] == "stop"


def held_back(model: SummingModel, rows: int, sequences: list[TextSequence]) -> None:
    """Add sequences so that all wait at the decoder's first step."""
    decoder = BatchDecoder(model, rows)
    with decoder._work_added:  # the loop waits for this lock
        decoder._waiting.extend(sequences)
        decoder._work_added.notify()


@pytest.mark.parametrize(
    ("batch", "lengths", "first_calls"),
    [
        (0, [2, 2, 2], [("prefill", 2), ("decode", 1)]),
        (6, [2, 2, 2], [("prefill_batch", 3), ("decode", 3)]),
        (5, [2, 2, 2], [("prefill_batch", 2), ("decode", 2)]),
        (8, [2, 4, 2], [("prefill_batch", 2), ("decode", 2)]),  # each counts as long as the longest: 2 × 4
        (7, [2, 4, 2], [("prefill", 2), ("decode", 1)]),
    ],
)
def test_short_prompts_that_wait_are_prefilled_together_as_long_as_they_fit(
    batch: int, lengths: list[int], first_calls: list[tuple[str, int]]
) -> None:
    model = SummingModel(batch=batch)
    sequences = [sequence([1] * length, 3) for length in lengths]
    held_back(model, 4, sequences)
    for one in sequences:
        assert collect(one)[0] == alone(one.prompt, 3)
    assert model.calls[:2] == first_calls


def test_no_more_texts_run_at_once_than_there_are_rows() -> None:
    model = SummingModel(batch=100)
    sequences = [sequence([number], 4) for number in range(5)]
    held_back(model, 2, sequences)
    assert [collect(one)[0] for one in sequences] == [alone([number], 4) for number in range(5)]
    assert max(count for name, count in model.calls if name == "decode") == 2
    assert max(model.rows) == 1


def test_a_cancelled_text_gets_an_empty_update_and_the_others_go_on() -> None:
    def stop_after(steps: int) -> Callable[[], bool]:
        left = iter([False] * steps)
        return lambda: next(left, True)

    model = SummingModel(batch=100)
    cancelled, other = sequence([1], 50, should_stop=stop_after(3)), sequence([2], 8)
    held_back(model, 2, [cancelled, other])
    tokens, finish, _ = collect(cancelled)
    assert finish is None and tokens == alone([1], 50)[: len(tokens)]
    assert collect(other) == (alone([2], 8), "length", [])


def test_a_text_cancelled_during_its_prefill_frees_its_row() -> None:
    model = SummingModel(chunk=1)
    cancelled = sequence(list(range(8)), 5)
    cancelled.should_stop = lambda: cancelled.length >= 3
    other = sequence([4], 2)
    held_back(model, 1, [cancelled, other])
    assert collect(cancelled) == ([], None, [1, 2, 3])
    assert collect(other)[0] == alone([4], 2)


def test_logits_that_are_not_finite_end_all_texts_and_the_decoder_serves_the_next() -> None:
    model = SummingModel(batch=100)
    model.max_logit = math.nan
    decoder = BatchDecoder(model, 2)
    sequences = [sequence([number], 3) for number in range(2)]
    for one in sequences:
        decoder.add(one)
        with pytest.raises(WorkerCrashed):
            collect(one)
    model.max_logit = 1.0
    after = sequence([7, 8], 3)
    decoder.add(after)
    assert collect(after)[0] == alone([7, 8], 3)


class DelayedModel(SummingModel):
    """The same model on an asynchronous device: a step starts before the tokens of the previous one are read."""

    def __init__(self) -> None:
        super().__init__(batch=100)
        self.running = 0
        self.most_running = 0
        self.started = 0

    def start_decode(self, sequences: Sequence[TextSequence]) -> Callable[[], list[SampledToken]]:
        self.running += 1
        self.started += 1
        self.most_running = max(self.most_running, self.running)
        # The device knows the token of the step in flight; the host has not read it yet.
        for row, one in enumerate(sequences):
            self.rows[row] = self.rows[row][: one.length]
            self.rows[row].append(self.next(row).token)
        tokens = [self.next(row) for row in range(len(sequences))]

        def wait() -> list[SampledToken]:
            self.running -= 1
            return tokens

        return wait


def test_on_an_asynchronous_device_the_next_step_starts_before_the_tokens_are_read() -> None:
    model, one = DelayedModel(), sequence([3, 4], 6)
    BatchDecoder(model, 2).add(one)
    assert collect(one) == (alone([3, 4], 6), "length", [])
    assert model.most_running == 2
    assert model.started == 5, "the first of six tokens comes from the prefill, and no step is started for a seventh"


def test_on_an_asynchronous_device_a_text_that_ended_loses_its_surplus_token() -> None:
    model = DelayedModel()
    expected = alone([3, 4], 6)
    ends, other = sequence([3, 4], 6, stops=frozenset({expected[2]})), sequence([1], 9)
    held_back(model, 2, [ends, other])
    assert collect(ends) == (expected[:3], "stop", [])
    assert collect(other)[0] == alone([1], 9)
    assert ends.generated == 3 and not ends.pending and ends.updates.empty()
