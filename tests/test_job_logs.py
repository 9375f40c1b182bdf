"""The log of a job: its lines can be followed by the job's id."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from backend.jobs.live_job import LiveJob
from tests.test_executor import run


def lines_of(job: LiveJob, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages with the job's id, in order."""
    return [record.getMessage() for record in caplog.records if getattr(record, "job", None) == job.id]


def test_a_fallback_can_be_followed_by_the_id_of_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "backend")
    job = run(tmp_path, ["device_lost", "ok"])
    assert lines_of(job, caplog) == [
        "job accepted",
        "job planned",
        "device acquired",
        "worker started",
        "worker ready",
        "worker stopped",
        "attempt failed",
        "fallback",
        "device acquired",
        "worker started",
        "worker ready",
        "job ended",
    ]
    failed = next(record for record in caplog.records if record.getMessage() == "attempt failed")
    assert vars(failed)["code"] == "device_lost" and vars(failed)["device"] == "vulkan:0" and vars(failed)["detail"]
    assert not any("Hi" in str(vars(record).get("prompt")) for record in caplog.records), "prompts are not logged"


def test_a_worker_that_is_killed_for_a_timeout_is_logged_with_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "backend")
    job = run(tmp_path, ["stuck"])
    assert job.error and job.error.code == "worker_hung"
    lines = lines_of(job, caplog)
    assert lines[-4:] == ["job timed out in the worker", "worker killed", "attempt failed", "job ended"]
    killed = next(record for record in caplog.records if record.getMessage() == "worker killed")
    assert vars(killed)["cause"] == "no step finished within the timeout of 0.6 s"
    assert killed.levelno == logging.WARNING and vars(killed)["pid"] == (job.receipt and job.receipt.worker_pid)


def test_a_worker_that_dies_is_logged_with_its_exit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "backend")
    job = run(tmp_path, ["dies_running"])
    exited = next(record for record in caplog.records if record.getMessage() == "worker exited")
    assert vars(exited)["jobs"] == [job.id] and "SIGSEGV" in vars(exited)["cause"]
