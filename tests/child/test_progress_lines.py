"""Progress of one-shot programs: which lines are written, and the rate and time left that the parent estimates."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.one_shot import RateEstimator
from backend.child.progress_report import FileProgressReport, ProgressReport


class Clock:
    """A clock that only moves when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("backend.child.progress_report.time.monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_of_many_lines_in_a_moment_only_the_first_and_the_last_are_written(clock: Clock) -> None:
    out = io.StringIO()
    report = ProgressReport(out)
    for done in range(0, 101, 10):
        report.progress("download", done, 100)
    assert [line["done"] for line in lines(out)] == [0, 100]


def test_a_slow_phase_writes_each_line(clock: Clock) -> None:
    out = io.StringIO()
    report = ProgressReport(out)
    for done in range(3):
        report.progress("download", done, None)
        clock.now_s += 1
    assert [line["done"] for line in lines(out)] == [0, 1, 2]


def test_a_new_phase_is_written_at_once(clock: Clock) -> None:
    out = io.StringIO()
    report = ProgressReport(out)
    for phase in ("check", "download", "check"):
        report.progress(phase, 1, 9)
    assert [line["phase"] for line in lines(out)] == ["check", "download", "check"]


def test_a_line_break_in_a_value_does_not_break_the_line() -> None:
    out = io.StringIO()
    ProgressReport(out).send({"error": {"detail": "first\nsecond\u2028third"}})
    assert lines(out) == [{"error": {"detail": "first\nsecond\u2028third"}}]


def test_each_line_is_flushed() -> None:
    class Stream(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    out = Stream()
    ProgressReport(out).send({"ok": True})
    assert out.flushed == '{"ok": true}\n'


def test_the_files_of_a_model_are_reported_as_one_download(clock: Clock) -> None:
    out = io.StringIO()
    report = ProgressReport(out)
    for offset in (0, 40):
        part = FileProgressReport(report, offset, 100)
        clock.now_s += 1
        part.progress("download", 25, 40)
        part.send({"note": offset})
    assert lines(out) == [
        {"phase": "download", "done": 25, "total": 100},
        {"note": 0},
        {"phase": "download", "done": 65, "total": 100},
        {"note": 40},
    ]


def progress_line(phase: str, done: int, total: int | None) -> dict[str, Any]:
    return {"phase": phase, "done": done, "total": total}


def test_a_resumed_download_is_rated_by_its_new_bytes_only() -> None:
    estimator = RateEstimator()
    estimator.progress(progress_line("download", 900, 1000), 10.0)
    progress = estimator.progress(progress_line("download", 950, 1000), 15.0)
    assert (progress.per_s, progress.eta_s) == (10.0, 5.0)


def test_the_rate_of_a_phase_does_not_count_the_phase_before() -> None:
    estimator = RateEstimator()
    estimator.progress(progress_line("download", 0, 100), 0.0)
    estimator.progress(progress_line("download", 100, 100), 1.0)
    assert estimator.progress(progress_line("check", 50, 100), 1.0).per_s is None
    assert estimator.progress(progress_line("check", 70, 100), 3.0).per_s == 10.0


@pytest.mark.parametrize(
    ("done", "total", "now_s", "expected"),
    [
        (0, 100, 1.0, (None, None)),  # nothing new
        (50, 100, 0.0, (None, None)),  # no time passed
        (50, None, 5.0, (10.0, None)),  # an unknown total
        (100, 100, 5.0, (20.0, 0.0)),
        (120, 100, 5.0, (24.0, 0.0)),  # more than announced
    ],
)
def test_what_cannot_be_estimated_is_left_out(
    done: int, total: int | None, now_s: float, expected: tuple[float | None, float | None]
) -> None:
    estimator = RateEstimator()
    estimator.progress(progress_line("download", 0, total), 0.0)
    progress = estimator.progress(progress_line("download", done, total), now_s)
    assert (progress.per_s, progress.eta_s) == expected


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**9), st.integers(0, 100)), max_size=20))
def test_neither_rate_nor_time_left_is_ever_negative(lines_: list[tuple[str, int, int]]) -> None:
    estimator, now_s = RateEstimator(), 0.0
    for phase, done, wait_s in lines_:
        now_s += wait_s
        progress = estimator.progress(progress_line(phase, done, 10**9), now_s)
        assert (progress.phase, progress.done, progress.total) == (phase, done, 10**9)
        assert progress.per_s is None or progress.per_s >= 0
        assert progress.eta_s is None or progress.eta_s >= 0
