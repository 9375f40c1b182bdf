"""The chunks of llama.cpp's server: text, counts and finish reasons of a job, embeddings, grammars and refusals."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.common.errors import ContextLengthExceeded, ModelIncompatible, UnsupportedParameter
from backend.engines._llama.embeddings import embed
from backend.engines._llama.grammar import grammar_of
from backend.engines._llama.stream import Stream

Events = list[tuple[str, Mapping[str, Any]]]


def text(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of a chat."""
    return {"choices": [{"delta": {"content": content}, "finish_reason": finish}], **more}


def play(*chunks: dict[str, Any], stop: str | list[str] | None = None, cancel_at: str = "") -> tuple[Stream, Events]:
    """Feed chunks until one ends the generation. Returns the stream and its events."""
    events: Events = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append((event, data))
        return bool(cancel_at) and cancel_at in data.get("text", "")

    stream = Stream(emit, stop, None)
    for chunk in chunks:
        if stream(chunk):
            break
    return stream, events


def shown(events: Events) -> str:
    return "".join(data["text"] for event, data in events if event == "token")


def collecting(events: Events, cancel: bool = False) -> Callable[[str, Mapping[str, Any]], bool]:
    def emit(event: str, data: Mapping[str, Any]) -> bool:
        events.append((event, data))
        return cancel

    return emit


def test_text_of_chats_and_of_completions_is_shown() -> None:
    _, events = play(text("Hel"), {"choices": [{"text": "lo"}]}, text("", "stop"))
    assert shown(events) == "Hello" and [data["count"] for _, data in events] == [1, 1]


def test_the_counts_of_the_usage_win_over_counted_chunks() -> None:
    usage = {"completion_tokens": 7, "prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}
    stream, _ = play(text("a"), text("b", "length"), {"choices": [], "usage": usage})
    result = stream.result("model")
    assert result.counts == {"tokens": 7, "prompt_tokens": 12, "cached_tokens": 4}
    assert result.finish_reason == "length" and result.chat_template == "model"


def test_without_a_usage_the_timings_count() -> None:
    timings = {"predicted_n": 5, "prompt_n": 3, "cache_n": 9}
    stream, events = play(text("a"), text("bc", "stop", timings=timings))
    assert [data["count"] for _, data in events] == [1, 4]
    assert stream.result(None).counts == {"tokens": 5, "prompt_tokens": 12, "cached_tokens": 9}


def test_without_any_counts_each_chunk_with_text_is_a_token() -> None:
    stream, _ = play(text("a"), text(""), text("b"))
    assert stream.result(None).counts == {"tokens": 2} and stream.result(None).finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("stop", "expected", "finish"),
    [("END", "a", "stop"), (["x", "EN"], "a", "stop"), ("ENDS", "aEND", "length"), (None, "aEND", "length")],
)
def test_a_stop_sequence_over_several_chunks_ends_the_text_before_it(
    stop: str | list[str] | None, expected: str, finish: str
) -> None:
    stream, events = play(text("aE"), text("N"), text("D"), text("", "length"), stop=stop)
    assert shown(events) == expected and stream.result(None).finish_reason == finish


def test_the_count_of_held_back_text_is_sent_with_it() -> None:
    _, events = play(text("E"), text("N"), text("x"), stop="END")
    assert events == [("token", {"text": "ENx", "count": 3})]


def test_a_cancel_ends_the_generation_at_its_token() -> None:
    stream, events = play(text("a"), text("b"), text("c"), cancel_at="b")
    assert shown(events) == "ab" and stream.result(None).finish_reason == "cancelled"


def test_log_probabilities_go_out_with_their_text() -> None:
    events: Events = []
    stream = Stream(collecting(events), None, 1)
    logprobs = {"content": [{"id": 5, "token": "a", "bytes": [97], "logprob": -0.25, "top_logprobs": []}]}
    stream({"choices": [{"text": "a", "logprobs": logprobs}]})
    stream({"choices": [{"text": "b"}]})
    assert [[each["logprob"] for each in data["logprobs"]] for _, data in events] == [[-0.25], []]


def test_a_prompt_beyond_the_context_is_an_error_with_both_counts() -> None:
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096, "message": "too long"}
    stream, _ = play({"error": error}, text("never"))
    with pytest.raises(ContextLengthExceeded) as refused:
        stream.result(None)
    assert refused.value.extra == {"prompt_tokens": 5000, "context_tokens": 4096}


@pytest.mark.parametrize(("error", "message"), [({"message": "bad role"}, "bad role"), ({}, "no message")])
def test_another_refusal_is_repeated(error: dict[str, Any], message: str) -> None:
    stream, events = play({"error": error})
    assert events == []
    with pytest.raises(ModelIncompatible, match=message):
        stream.result(None)


# Embeddings


class Embedder:
    """A server that returns the given answers in turn."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.inputs: list[str] = []

    def handle_embeddings(self, request: dict[str, Any]) -> dict[str, Any]:
        self.inputs.append(request["input"])
        return self.answers.pop(0)


def vector(*values: float) -> dict[str, Any]:
    """Return the answer for a text of three tokens."""
    packed = base64.b64encode(np.array(values, "<f4").tobytes()).decode()
    return {"data": [{"embedding": packed}], "usage": {"prompt_tokens": 3}}


def test_each_text_is_a_row_of_the_file_in_its_order(tmp_path: Path) -> None:
    events: Events = []
    server = Embedder(vector(1, 0), vector(0.6, 0.8))
    result = embed(server, ["a", "b"], str(tmp_path), collecting(events))
    assert np.load(tmp_path / "embeddings.npy").tolist() == np.array([[1, 0], [0.6, 0.8]], "float32").tolist()
    assert result.counts == {"texts": 2, "prompt_tokens": 6} and result.finish_reason == "stop"
    assert server.inputs == ["a", "b"] and [event for event, _ in events] == ["progress", "progress", "artifact"]


def test_a_cancel_between_two_texts_leaves_no_file(tmp_path: Path) -> None:
    result = embed(Embedder(vector(1), vector(2)), ["a", "b"], str(tmp_path), collecting([], cancel=True))
    assert result.finish_reason == "cancelled" and result.counts["texts"] == 1 and not list(tmp_path.iterdir())


def test_a_cancel_after_the_last_text_comes_too_late(tmp_path: Path) -> None:
    result = embed(Embedder(vector(1)), ["a"], str(tmp_path), collecting([], cancel=True))
    assert result.finish_reason == "stop" and (tmp_path / "embeddings.npy").is_file()


@pytest.mark.parametrize(
    "message",
    [
        "input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        "the request (900 tokens) exceeds the available context size (512 tokens)",
    ],
)
def test_a_text_that_is_too_long_is_named_by_its_place_with_both_counts(tmp_path: Path, message: str) -> None:
    server = Embedder(vector(1), {"error": {"message": message}})
    with pytest.raises(ContextLengthExceeded, match="Text 2 of 3 has 900 tokens") as refused:
        embed(server, ["a", "b", "c"], str(tmp_path), collecting([]))
    assert refused.value.extra == {"prompt_tokens": 900, "context_tokens": 512}


def test_another_refusal_of_a_text_is_repeated(tmp_path: Path) -> None:
    with pytest.raises(ModelIncompatible, match="Text 1 of 1: pooling is none"):
        embed(Embedder({"error": {"message": "pooling is none"}}), ["a"], str(tmp_path), collecting([]))


# Grammars


class Matcher:
    """Stands for the library's validator. It refuses with the class attribute `refusal`."""

    refusal = ""
    grammars: list[str] = []

    @classmethod
    def validate_grammar(cls, grammar: str) -> str:
        cls.grammars.append(grammar)
        return cls.refusal


@pytest.fixture
def matcher(monkeypatch: pytest.MonkeyPatch) -> type[Matcher]:
    """The validator, installed as the library llguidance."""
    kind = type("Fresh", (Matcher,), {"grammars": [], "LLMatcher": None})
    monkeypatch.setitem(sys.modules, "llguidance", type("llguidance", (), {"LLMatcher": kind}))
    return kind


def test_a_format_without_a_schema_allows_any_object(matcher: type[Matcher]) -> None:
    grammar = grammar_of({"type": "json_object", "json_schema": None})
    assert '"type": "object"' in grammar and '"whitespace_flexible": false' in grammar
    assert matcher.grammars == [grammar]


def test_a_schema_is_part_of_the_grammar_and_stays_unchanged(matcher: type[Matcher]) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert '"items": {"type": "integer"}' in grammar_of({"json_schema": {"schema": schema}})
    assert schema == {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("refusal", "kind", "reason"),
    [
        ("failed to compile JSON schema: Unimplemented keys: [\"not\"]\n   1 | x", UnsupportedParameter, "keys: "),
        ("failed to compile JSON schema: bad  type\n   1 | start", ValueError, "cannot be used: bad type."),
        ("another failure", ValueError, "another failure"),
    ],
)  # fmt: skip
def test_a_refused_schema_is_an_error_with_the_library_s_reason_alone(
    matcher: type[Matcher], monkeypatch: pytest.MonkeyPatch, refusal: str, kind: type[Exception], reason: str
) -> None:
    monkeypatch.setattr(matcher, "refusal", refusal)
    with pytest.raises(Exception) as refused:
        grammar_of({"json_schema": {"schema": {}}})
    code = getattr(refused.value, "code", None)
    assert (code == "unsupported_parameter") == (kind is UnsupportedParameter)
    assert reason in str(refused.value) and "1 |" not in str(refused.value)
