"""A text session with a vocabulary of letters: prompt tokens, shown text, stops, cancels and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ContextLengthExceeded, OutOfMemory, Validation
from backend.common.types import Placement
from backend.engines import RunRequest, RunResult
from backend.engines._text import session
from backend.engines._text.batch_decoder import BatchDecoder, SampledToken, TextSequence
from backend.engines._text.chat_prompt import Prompt
from backend.engines._text.cpu_sampling import HostSampling
from backend.engines._text.logit_bias import check_biases
from backend.engines._text.logprobs import Logprobs
from backend.engines._text.sampler import Sampler
from backend.engines._text.session import TextSession
from backend.tasks.options import parse_options

BEGIN, END = 1, 2


class Letters:
    """A vocabulary whose tokens are the bytes of UTF-8, BEGIN and END."""

    vocabulary_size: int | None = 256

    def __init__(self, begin: int | None = None) -> None:
        self.begin = begin
        self.ends = frozenset({END})

    def encode(self, piece: str) -> list[int]:
        return list(piece.encode())

    def stream(self) -> Callable[[int], str]:
        waiting = b""

        def add(token: int) -> str:
            nonlocal waiting
            waiting += bytes([token])
            try:
                text = waiting.decode()
            except UnicodeDecodeError:
                return ""
            waiting = b""
            return text

        return add

    def text(self, token: int) -> str:
        return chr(token)


class Script:
    """A model that generates the bytes of one text and then END. It keeps the prompts that it was given."""

    prefill_chunk_tokens, prefill_batch_tokens = 8, 0

    def __init__(self, text: str, error: Exception | None = None) -> None:
        self.tokens = [*text.encode(), END]
        self.error = error
        self.prompts: list[list[int]] = []
        self.made: dict[int, int] = {}

    def sampled(self, one: TextSequence) -> SampledToken:
        if self.error:
            raise self.error
        token = self.tokens[min(one.generated, len(self.tokens) - 1)]
        return SampledToken(token, 1.0, -0.5, ((token, -0.5), (65, -2.0)))

    def assign_row(self, row: int, sequence: TextSequence) -> None:
        self.prompts.append(sequence.prompt)

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        return self.sampled(sequence) if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        raise AssertionError("no batch fits into 0 tokens")

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        return [self.sampled(one) for one in sequences]

    def move_row(self, source: int, target: int, length: int) -> None:
        raise AssertionError("one sequence never moves")


class Pieces:
    """Stands for a chat template: these pieces are the prompt."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = list(pieces)

    def prompt(self, request: RunRequest) -> Prompt:
        return Prompt(self._pieces, tokens=request.options.get("prompt_tokens"))


def run(
    text: str,
    pieces: Sequence[str] = ("hi",),
    begin: int | None = None,
    context: int = 100,
    stop_at: str | None = None,
    error: Exception | None = None,
    **options: Any,
) -> tuple[RunResult, list[tuple[str, Mapping[str, Any]]], Script]:
    """Run one request. `stop_at` is the event at which the caller cancels."""
    events: list[tuple[str, Mapping[str, Any]]] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        if event != "poll":
            events.append((event, data))
        return event == stop_at

    model: Any = Script(text, error)
    chat: Any = Pieces(*pieces)
    session = TextSession(BatchDecoder(model, 1), Letters(begin), chat, context, Placement(1.0), 1, {})
    request = RunRequest(None, "", parse_options("text", {"max_tokens": 50, **options}), 1, False)
    return session.run(request, emit), events, model


def shown(events: list[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the text of all token events."""
    return "".join(data["text"] for event, data in events if event == "token")


def test_an_end_token_is_counted_but_not_shown() -> None:
    result, events, _ = run("hello")
    assert shown(events) == "hello" and result.finish_reason == "stop"
    assert result.counts == {"tokens": 6, "prompt_tokens": 2, "cached_tokens": 0}


@pytest.mark.parametrize(
    ("pieces", "begin", "expected"),
    [
        (["ab", "c"], None, [97, 98, 99]),
        (["ab"], BEGIN, [BEGIN, 97, 98]),
        (["\x01ab"], BEGIN, [BEGIN, 97, 98]),  # the template wrote it already
        ([], BEGIN, [BEGIN]),
        ([], None, [END]),  # a model needs at least one token
    ],
)
def test_the_prompt_has_its_begin_token_once_and_is_never_empty(
    pieces: list[str], begin: int | None, expected: list[int]
) -> None:
    assert run("x", pieces, begin)[2].prompts == [expected]


def test_a_prompt_of_token_ids_is_used_as_it_is() -> None:
    assert run("x", begin=BEGIN, prompt_tokens=[97, 98])[2].prompts == [[97, 98]]
    with pytest.raises(Validation, match="prompt_tokens"):
        run("x", prompt_tokens=[97, 1_000_000])


def test_the_limit_is_what_the_context_leaves() -> None:
    result, events, _ = run("abcdefgh", ["12345"], context=8)
    assert shown(events) == "abc" and result.finish_reason == "length" and result.counts["tokens"] == 3


@pytest.mark.parametrize("length", [8, 9])
def test_a_prompt_that_fills_the_context_is_rejected_with_both_counts(length: int) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        run("x", ["a" * length], context=8)
    assert refused.value.extra == {"prompt_tokens": length, "context_tokens": 8}


def test_a_character_of_several_tokens_is_shown_when_it_is_complete() -> None:
    _, events, _ = run("aé猫!")
    assert shown(events) == "aé猫!"
    assert all("\ufffd" not in data["text"] for _, data in events)


@pytest.mark.parametrize(
    ("stop", "expected", "reason"),
    [("lo", "hel", "stop"), (["x", "l"], "he", "stop"), ("lox", "hello", "stop"), ("hello world", "hello", "stop")],
)
def test_a_stop_sequence_over_several_tokens_ends_the_text_before_it(
    stop: str | list[str], expected: str, reason: str
) -> None:
    result, events, _ = run("hello", stop=stop)
    assert shown(events) == expected and result.finish_reason == reason


def test_the_token_counts_of_the_events_add_up_to_the_tokens_behind_the_shown_text() -> None:
    _, events, _ = run("aé猫!", max_tokens=6)
    assert sum(data["count"] for event, data in events if event == "token") == 6


def test_progress_is_reported_at_intervals_and_a_cancel_is_heard_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], list[tuple[str, Any]]()

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        told.append((event, data.get("done")))
        return event == "poll"

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress, stops = session._PromptProgress(emit), []
    for number in range(1, 6):
        now[0] += session._PROGRESS_GAP_S * 0.6
        stops.append(progress.report(number, 9))
    assert told == [("progress", 1), ("poll", None), ("progress", 3), ("poll", None), ("progress", 5)]
    assert stops == [False, True, False, True, False]


def test_a_long_prompt_reports_its_progress_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_PROGRESS_GAP_S", 0.0)
    _, events, _ = run("x", ["a" * 20])
    progress = [data for event, data in events if event == "progress"]
    assert [(data["done"], data["total"], data["unit"]) for data in progress] == [(8, 20, "tokens"), (16, 20, "tokens")]


@pytest.mark.parametrize("event", ["progress", "token", "poll"])
def test_a_cancel_is_honoured_at_every_kind_of_event(event: str) -> None:
    assert run("hello" * 5, ["a" * 20], stop_at=event)[0].finish_reason == "cancelled"


def test_log_probabilities_belong_to_the_shown_text_only() -> None:
    _, events, _ = run("hello", stop="l", logprobs=2)
    listed = [entry for event, data in events if event == "token" for entry in data["logprobs"]]
    assert [entry["token"] for entry in listed] == ["h", "e"]
    assert listed[0] == {
        "id": 104, "token": "h", "bytes": [104], "logprob": -0.5,
        "top_logprobs": [
            {"id": 104, "token": "h", "bytes": [104], "logprob": -0.5},
            {"id": 65, "token": "A", "bytes": [65], "logprob": -2.0},
        ],
    }  # fmt: skip


def test_a_device_without_memory_is_an_error_with_the_context_as_remedy() -> None:
    with pytest.raises(OutOfMemory, match="ran out of memory") as failed:
        run("x", error=RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert "context_tokens" in failed.value.remedy
    with pytest.raises(ZeroDivisionError):
        run("x", error=ZeroDivisionError("another error"))


def test_a_bias_beyond_the_vocabulary_is_rejected_by_its_id() -> None:
    with pytest.raises(Validation, match="no 256"):
        run("x", logit_bias={"3": 1, "256": 1})
    check_biases({"255": 1.0}, 256)
    check_biases(None, 1)


# Log probabilities


def entry(text: str, logprob: float | None = -1.0, **more: Any) -> Any:
    """Return a token as llama.cpp's server reports it."""
    return {"id": 1, "token": text, "bytes": list(text.encode()), "logprob": logprob, **more}


def test_log_probabilities_wait_until_their_token_is_shown() -> None:
    collected = Logprobs(0)
    collected.take([entry("ab"), entry("é"), entry("c")])
    assert [each["token"] for each in collected.of("a")] == ["ab"]
    assert collected.of("b") == []
    assert [each["token"] for each in collected.of("éc")] == ["é", "c"]


def test_an_impossible_token_has_the_lowest_number_that_json_can_represent() -> None:
    collected = Logprobs(1)
    collected.take([entry("a", None, top_logprobs=[entry("b", -float("inf")), entry("c")])])
    (listed,) = collected.of("a")
    assert listed["logprob"] == -9999.0
    assert [(each["token"], each["logprob"]) for each in listed["top_logprobs"]] == [("b", -9999.0)]


# Samplers


def plain_choices(logits: Any, options: dict[str, Any], seen: list[int]) -> set[int]:
    """Return the tokens that may be chosen, computed token by token without NumPy."""
    values = dict(enumerate(map(float, logits)))
    for token, value in (options["logit_bias"] or {}).items():
        values[int(token)] += value
    for token in set(seen):
        penalty = options["repetition_penalty"]
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        values[token] -= seen.count(token) * options["frequency_penalty"] + options["presence_penalty"]
    ranked = sorted(values, key=lambda token: -values[token])
    if options["temperature"] == 0:
        return set(ranked[:1])
    ranked = ranked[: options["top_k"] or len(ranked)]
    weights = [2.718281828459045 ** (values[token] - values[ranked[0]]) for token in ranked]
    kept, total = 0, 0.0
    while kept < len(ranked) and total < options["top_p"] * sum(weights) * (1 - 1e-9):
        total += weights[kept]
        kept += 1
    return set(ranked[:kept])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([7, 64, 700, 5000]),
    top_k=st.sampled_from([0, 1, 3, 10]),
    top_p=st.sampled_from([0.2, 0.6, 1.0]),
    temperature=st.sampled_from([0, 0.5, 1.9]),
    penalties=st.tuples(
        st.sampled_from([1.0, 0.6, 1.7]), st.sampled_from([0.0, 1.5, -1.0]), st.sampled_from([0.0, 0.7])
    ),
    bias=st.sampled_from([None, {"0": 3.0, "6": -4.0}]),
)
def test_a_chosen_token_is_one_that_the_options_allow(
    seed: int,
    size: int,
    top_k: int,
    top_p: float,
    temperature: float,
    penalties: tuple[float, float, float],
    bias: dict[str, float] | None,
) -> None:
    chance = np.random.default_rng(seed)
    logits = chance.standard_normal(size).astype(np.float32) * 3
    seen = [int(token) for token in chance.integers(0, 7, 5)]
    repetition, presence, frequency = penalties
    options = parse_options(
        "text",
        {"top_k": top_k, "top_p": top_p, "temperature": temperature, "logit_bias": bias}
        | {"repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency},
    )
    sampler = Sampler(options, seed, seen)
    for _ in range(4):
        allowed = plain_choices(logits, options, seen)
        token = sampler.next(logits.copy())
        assert token in allowed
        seen.append(token)


def sequence(prompt: list[int], seed: int = 3, **options: Any) -> TextSequence:
    return TextSequence(prompt, parse_options("text", options), seed, 9, frozenset())


def test_the_log_probabilities_of_a_step_are_of_the_model_and_not_of_the_sampler() -> None:
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    samplers, one = HostSampling(), sequence([], temperature=0, logprobs=2, logit_bias={"0": 100})
    samplers.add(one)
    sampled = samplers.sample(one, logits.copy())
    assert sampled.token == 0 and sampled.logprob == pytest.approx(np.log(0.1), abs=1e-5)
    assert [token for token, _ in sampled.top_logprobs] == [1, 2]
    assert [value for _, value in sampled.top_logprobs] == pytest.approx(np.log([0.6, 0.3]), abs=1e-5)
    assert sampled.max_logit == pytest.approx(np.log(0.6), abs=1e-5)


def test_each_sequence_has_a_sampler_of_its_own_and_the_same_seed_draws_the_same() -> None:
    logits = np.zeros(50, np.float32)
    samplers = HostSampling()
    first, second, other = sequence([], 5), sequence([], 5), sequence([], 6)
    for one in (first, second, other):
        samplers.add(one)

    def drawn(one: TextSequence) -> list[int]:
        return [samplers.sample(one, logits.copy()).token for _ in range(8)]

    texts = drawn(first), drawn(other), drawn(second)
    assert texts[0] == texts[2] != texts[1]


def test_without_a_request_for_them_no_log_probabilities_are_computed() -> None:
    samplers, one = HostSampling(), sequence([])
    samplers.add(one)
    sampled = samplers.sample(one, np.zeros(4, np.float32))
    assert sampled.logprob is None and sampled.top_logprobs == ()
