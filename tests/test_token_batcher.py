"""The token batcher: the first token at once, fast tokens joined, tokens of a step sent together."""

from __future__ import annotations

import queue

from backend.child.token_batcher import TokenBatcher
from backend.child.wire_protocol import TokenFrame
from backend.common.engine_api import TokenEvent, TokenLogprob
from backend.common.token_batching import flush_interval_s

GAP_S = flush_interval_s(1)


class Out:
    """What was sent, write by write, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.writes: queue.SimpleQueue[list[TokenFrame]] = queue.SimpleQueue()
        self.tokens = TokenBatcher(self.writes.put, lambda: self.now)

    def taken(self) -> list[list[tuple[str, str, int]]]:
        """The writes so far: job, text and count of each frame."""
        found = []
        while not self.writes.empty():
            found.append(sorted((f["job"], f["text"], f["count"]) for f in self.writes.get()))
        return found


def token(text: str) -> TokenEvent:
    return {"text": text, "count": 1}


def logprob(id_: int) -> TokenLogprob:
    return {"id": id_, "token": "", "bytes": [], "logprob": 0.0, "top_logprobs": []}


def test_the_first_token_goes_at_once_and_fast_ones_are_joined() -> None:
    out = Out()
    line = out.tokens.open_job("a")
    line.add(token("one "))
    assert out.taken() == [[("a", "one ", 1)]]
    line.add(token("two "))
    line.add(token("three "))
    assert out.taken() == []
    out.now += GAP_S
    line.add(token("four "))
    assert out.taken() == [[("a", "two three four ", 3)]]


def test_each_token_of_a_slow_model_goes_at_once() -> None:
    out = Out()
    line = out.tokens.open_job("a")
    for text in ("one ", "two ", "three "):
        line.add(token(text))
        out.now += GAP_S
    assert out.taken() == [[("a", "one ", 1)], [("a", "two ", 1)], [("a", "three ", 1)]]


def test_the_end_sends_what_is_left() -> None:
    out = Out()
    line = out.tokens.open_job("a")
    line.add(token("one "))
    line.add(token("two "))
    line.flush()
    line.flush()
    assert out.taken() == [[("a", "one ", 1)], [("a", "two ", 1)]]


def test_the_tokens_of_one_step_go_out_together_with_what_others_have() -> None:
    out = Out()
    lines = [out.tokens.open_job(name) for name in "abc"]
    for line in lines:
        line.add(token("first "))
    assert [len(frames) for frames in out.taken()] == [1, 1, 1]
    out.now += flush_interval_s(3)
    for line in lines:
        line.add(token("second "))
    together = [("a", "second ", 1), ("b", "second ", 1), ("c", "second ", 1)]
    assert out.taken() == [together]


def test_a_job_that_has_no_token_in_a_step_holds_up_nobody() -> None:
    out = Out()
    one, other = out.tokens.open_job("a"), out.tokens.open_job("b")
    one.add(token("first "))
    other.add(token("first "))
    out.taken()
    out.now += GAP_S
    one.add(token("second "))
    assert [frame["text"] for frame in out.writes.get(timeout=30)] == ["second "]


def test_a_job_that_ended_is_not_waited_for() -> None:
    out = Out()
    one, other = out.tokens.open_job("a"), out.tokens.open_job("b")
    one.add(token("first "))
    other.add(token("first "))
    other.flush()
    out.taken()
    out.now += GAP_S
    one.add(token("second "))
    assert out.taken() == [[("a", "second ", 1)]]


def test_log_probabilities_are_joined_as_well() -> None:
    out = Out()
    line = out.tokens.open_job("a")
    line.add({**token("one "), "logprobs": [logprob(1)]})
    line.add({**token("two "), "logprobs": [logprob(2)]})
    line.add({**token("three "), "logprobs": [logprob(3)]})
    line.flush()
    assert [frame["logprobs"] for frames in (out.writes.get(), out.writes.get()) for frame in frames] == [
        [logprob(1)],
        [logprob(2), logprob(3)],
    ]


def test_the_more_write_the_longer_is_joined_up_to_a_limit() -> None:
    for jobs, gap_s in ((2, GAP_S), (4, 2 * GAP_S), (200, 4 * GAP_S)):
        out = Out()
        lines = [out.tokens.open_job(str(number)) for number in range(jobs)]
        for line in lines:
            line.add(token("first "))
        out.taken()
        out.now += 0.9 * gap_s
        for line in lines:
            line.add(token("second "))
        assert out.taken() == []
        out.now += 0.2 * gap_s
        for line in lines:
            line.add(token("third "))
        assert [frames[0][1:] for frames in out.taken()] == [("second third ", 2)]
