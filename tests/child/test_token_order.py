"""Tokens of each job arrive in order and once, for any order and times of the tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.token_batcher import JobTokens, TokenBatcher
from backend.child.wire_protocol import TokenFrame
from backend.common.engine_api import TokenLogprob

JOBS = ("a", "b", "c")
# Each step: a job, the milliseconds since the last step, and whether the job ends after its token.
STEPS = st.lists(
    st.tuples(st.sampled_from(JOBS), st.integers(0, 300), st.integers(0, 9).map(lambda number: number == 0)),
    max_size=60,
)


class Steps(TokenBatcher):
    """A batcher without its thread, so that only calls send frames."""

    def _start_timer(self) -> None:
        pass


class Play:
    """Plays steps and keeps what was sent: the frames of each call, with the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[tuple[float, list[TokenFrame]]] = []
        self.batcher = Steps(lambda frames: self.calls.append((self.now_s, frames)), lambda: self.now_s)
        self.open = {job: self.batcher.open_job(job) for job in JOBS}
        self.added: dict[str, str] = dict.fromkeys(JOBS, "")

    def step(self, job: str, passed_ms: int, ends: bool) -> None:
        self.now_s += passed_ms / 1000
        text = f"{job}{len(self.added[job])};"
        self.added[job] += text
        entry: TokenLogprob = {"id": 0, "token": text, "bytes": [], "logprob": 0.0, "top_logprobs": []}
        self.open[job].add({"text": text, "count": 1, "logprobs": [entry]})
        if ends:
            self.open[job].flush()

    def frames(self, job: str) -> list[TokenFrame]:
        return [frame for _, frames in self.calls for frame in frames if frame["job"] == job]


def played(steps: list[tuple[str, int, bool]]) -> Play:
    play = Play()
    for step in steps:
        play.step(*step)
    return play


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(STEPS)
def test_no_token_is_lost_repeated_or_moved(steps: list[tuple[str, int, bool]]) -> None:
    play = played(steps)
    for tokens in play.open.values():
        tokens.flush()
    for job in JOBS:
        frames = play.frames(job)
        assert "".join(frame["text"] for frame in frames) == play.added[job]
        assert sum(frame["count"] for frame in frames) == sum(step[0] == job for step in steps)
        logged = [entry["token"] for frame in frames for entry in frame["logprobs"]]
        assert "".join(logged) == play.added[job]


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(STEPS)
def test_no_call_is_empty_and_no_job_is_in_it_twice(steps: list[tuple[str, int, bool]]) -> None:
    for _, frames in played(steps).calls:
        jobs = [frame["job"] for frame in frames]
        assert jobs
        assert len(set(jobs)) == len(jobs)


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(STEPS)
def test_the_end_of_a_job_leaves_nothing_of_it_pending(steps: list[tuple[str, int, bool]]) -> None:
    play = Play()
    for job, passed_ms, ends in steps:
        play.step(job, passed_ms, ends)
        if ends:
            assert "".join(frame["text"] for frame in play.frames(job)) == play.added[job]


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_one_job_sends_at_most_twenty_frames_a_second(waits_ms: list[int]) -> None:
    play = played([("a", wait, False) for wait in waits_ms])
    times = [time_s for time_s, _ in play.calls]
    assert all(later - earlier > 0.0499 for earlier, later in zip(times, times[1:], strict=False))


def test_a_job_that_ends_without_a_token_sends_nothing() -> None:
    play = Play()
    play.open["a"].flush()
    assert play.calls == []


def test_a_job_may_end_twice() -> None:
    play = played([("a", 0, True)])
    play.open["a"].flush()
    assert [frame["text"] for frame in play.frames("a")] == ["a0;"]


def test_a_frame_without_log_probabilities_has_no_such_field() -> None:
    sent: list[TokenFrame] = []
    tokens: JobTokens = Steps(sent.extend, lambda: 0.0).open_job("a")
    tokens.add({"text": "x", "count": 2})
    assert sent == [{"op": "token", "job": "a", "text": "x", "count": 2}]
