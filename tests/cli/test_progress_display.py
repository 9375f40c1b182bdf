"""The progress bar on wide and narrow terminals and in pipes, and what a job's follower decides."""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.job_follower import follow_to_end, generate_with_progress, parse_progress
from backend.cli.progress_bar import LINE_INTERVAL_S, ProgressBar
from backend.common.errors import DiskFull, JobCancelled, NotFound, TouchstoneError
from backend.common.types import Event, Progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(progress: Progress, columns: int = 120) -> str:
    """Return what a terminal with this many columns shows."""
    out = Terminal()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
        ProgressBar(out).show(progress)
    return out.getvalue().removeprefix("\r")


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(("download", "check", "wait", "retry", "a phase with a long name")),
    st.floats(0, 1e12),
    st.none() | st.floats(0, 1e12),
    st.sampled_from(("bytes", "bars", "tokens")),
    st.none() | st.floats(0, 1e6),
    st.integers(2, 200),
)
def test_a_line_always_fits_into_the_terminal_and_overwrites_the_last_one(
    phase: str, done: float, total: float | None, unit: str, eta_s: float | None, columns: int
) -> None:
    shown = drawn(Progress(phase, done, total, unit, eta_s, eta_s), columns)
    assert len(shown) == columns - 1
    assert "\n" not in shown


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 1000), st.integers(1, 1000))
def test_the_bar_grows_with_the_work(done: int, total: int) -> None:
    done = min(done, total)
    bars = [drawn(Progress("x", amount, total, "runs")) for amount in (0, done, total)]
    filled = [bar.count("#") for bar in bars]
    assert filled == sorted(filled)
    assert filled[0] == 0
    assert filled[-1] == len(re.findall("[#-]", bars[1]))


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress("download", 5e6, 10e6, "bytes", 2.4, 2e6), ["5.0 of 10.0 MB", "2.0 MB/s", "2 s left"]),
        (Progress("music", 3, 8, "bars"), ["3 of 8 bars"]),
        (Progress("text", 12, None, "tokens"), ["text 12.0 tokens"]),
        (Progress("loading", 0, None, "bytes"), ["loading"]),
        (Progress("retry", 3e6, 9e6, "bytes"), ["connection lost at 3.0 MB, retrying"]),
        (Progress("stems", 1.5, 3, "tracks"), ["1.5 of 3.0 tracks"]),
    ],
)
def test_amounts_are_shown_in_their_unit(progress: Progress, words: list[str]) -> None:
    shown = drawn(progress)
    assert all(word in shown for word in words)


def test_more_than_the_estimated_total_is_a_full_bar() -> None:
    full, beyond = (drawn(Progress("install", done, 10, "runs")) for done in (10, 35))
    assert full.replace("10 of 10", "") == beyond.replace("35 of 10", "")


def test_a_complete_phase_shows_no_time_left() -> None:
    assert "left" not in drawn(Progress("download", 10, 10, "bytes", 0.0, 5.0))
    assert "left" in drawn(Progress("download", 9, 10, "bytes", 0.0, 5.0))


def test_a_pipe_gets_a_line_only_every_few_seconds() -> None:
    out, now_s = io.StringIO(), [0.0]
    bar = ProgressBar(out, lambda: now_s[0])
    for second in range(int(3 * LINE_INTERVAL_S)):
        now_s[0] = float(second)
        bar.show(Progress("download", second * 1e6, None, "bytes"))
    assert out.getvalue().splitlines() == ["download 5.0 MB", "download 10.0 MB"]


def test_a_line_below_the_bar_starts_in_the_first_column() -> None:
    out = Terminal()
    bar = ProgressBar(out)
    bar.show(Progress("loading", 0, None, "bytes"))
    bar.print_line("! a note")
    bar.print_line("another")
    bar.close()
    bar.close()
    assert out.getvalue().endswith("\n! a note\nanother\n")


def test_a_bar_that_drew_nothing_ends_without_an_empty_line() -> None:
    out = Terminal()
    ProgressBar(out).close()
    assert out.getvalue() == ""


class Jobs:
    """A source of one job's events, which keeps whether the job was cancelled."""

    def __init__(self, *events: tuple[str, dict[str, Any]], failure: BaseException | None = None) -> None:
        self.events = [Event(number, name, {"job_id": "j", **data}) for number, (name, data) in enumerate(events)]
        self.failure, self.cancelled = failure, 0
        self.refusal: TouchstoneError | None = None

    async def cancel(self, job_id: str) -> None:
        assert job_id == "j"
        self.cancelled += 1
        if self.refusal:
            raise self.refusal

    async def follow(self, job_id: str) -> AsyncIterator[Event]:
        for event in self.events:
            yield event
        if self.failure:
            raise self.failure


PROGRESS = ("progress", vars(Progress("download", 1, 2, "bytes")))
ERROR = {"code": "disk_full", "detail": "No space.", "remedy": "Free some."}


def followed(jobs: Jobs) -> dict[str, Any]:
    return asyncio.run(follow_to_end(jobs, "j", ProgressBar(io.StringIO()), "Repeat it."))


def test_a_job_that_is_done_is_returned_and_not_cancelled() -> None:
    jobs = Jobs(("queued", {}), PROGRESS, ("done", {"output": 1}))
    assert followed(jobs) == {"job_id": "j", "output": 1}
    assert jobs.cancelled == 0


@pytest.mark.parametrize("event", ["error", "interrupted"])
def test_the_error_of_a_job_is_raised_with_its_class_and_remedy(event: str) -> None:
    with pytest.raises(DiskFull, match="No space") as caught:
        followed(Jobs((event, ERROR)))
    assert caught.value.remedy == "Free some."


def test_a_cancelled_job_is_an_error_with_the_remedy_of_the_verb() -> None:
    jobs = Jobs(("cancelled", {}))
    with pytest.raises(JobCancelled) as caught:
        followed(jobs)
    assert (caught.value.remedy, jobs.cancelled) == ("Repeat it.", 0)


@pytest.mark.parametrize("events", [(), (("queued", {}),), (PROGRESS,)])
def test_leaving_before_the_end_cancels_the_job(events: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    jobs = Jobs(*events, failure=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        followed(jobs)
    assert jobs.cancelled == 1


def test_a_job_that_ended_in_the_same_moment_does_not_hide_the_reason() -> None:
    jobs = Jobs(("queued", {}), failure=ConnectionError("lost"))
    jobs.refusal = NotFound("No such job.", "List them.")
    with pytest.raises(ConnectionError, match="lost"):
        followed(jobs)


def test_progress_events_carry_more_than_the_progress() -> None:
    data = {**PROGRESS[1], "job_id": "j", "at": "now", "unknown": 1}
    assert parse_progress(Event(1, "progress", data)) == Progress("download", 1, 2, "bytes")


class Client:
    """A client whose job has these events."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self.jobs = Jobs(*events)

    def generate(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        return self.jobs.follow("j")

    async def job(self, job_id: str) -> dict[str, Any]:
        return {"id": job_id}


def test_text_progress_and_fallbacks_go_to_their_places() -> None:
    out, texts, shown = io.StringIO(), list[str](), list[Progress]()
    client: Any = Client(
        ("fallback", {"from": "cuda:0", "to": "cpu", "reason": "no memory"}),
        PROGRESS,
        ("token", {"text": "Hel"}),
        ("token", {"text": "lo"}),
        ("done", {}),
    )
    work = generate_with_progress(client, {}, ProgressBar(out), shown.append, texts.append)
    last, job = asyncio.run(work)
    assert (last.event, job, "".join(texts)) == ("done", {"id": "j"}, "Hello")
    assert [progress.phase for progress in shown] == ["download"]
    assert out.getvalue() == "! cuda:0 could not be used: no memory\n"
