"""Workers whose child crashes, hangs, sends wrong frames or floods: each error, and no process remains."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from backend.common import errors
from backend.common.errors import TouchstoneError
from backend.engines import LoadRequest, RunRequest
from backend.scheduling import worker as workers
from backend.scheduling.worker import Limits, Worker, WorkerKey
from tests.faulty import faulty

KEY = WorkerKey("fake:0", "base", "llama.cpp", "a-model")
LIMITS = Limits(silence_s=0.6, load_s=0.8, step_s=0.6, cancel_s=0.3)
REQUEST = RunRequest(None, "Hello", {}, 1, False)


def worker(fault: str) -> Worker:
    return Worker(KEY, "python", LIMITS, faulty(fault))


async def play(fault: str, cancel: bool = False) -> list[str]:
    """Loads, runs one job and returns the kinds of frames it gave."""
    subject, cancelling, seen = worker(fault), asyncio.Event(), []
    try:
        await subject.load("llama.cpp", LoadRequest(KEY.device, "model.gguf", 64, 1))
        async for frame in subject.run("job", REQUEST, cancelling):
            seen.append(frame["op"])
            if cancel:
                cancelling.set()
        return seen
    finally:
        await subject.close()
        assert gone(subject.pid)


def gone(pid: int | None) -> bool:
    assert pid
    try:
        os.kill(pid, 0)
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def fails(fault: str) -> TouchstoneError:
    with pytest.raises(TouchstoneError) as caught:
        asyncio.run(play(fault))
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("fault", ["ok", "dies_loading", "dies_running"])
def test_its_folder_is_there_as_long_as_the_child(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "scratch_home", lambda: str(tmp_path))

    async def seen() -> list[bool]:
        subject, there = worker(fault), []
        with contextlib.suppress(TouchstoneError):
            await subject.load("llama.cpp", LoadRequest(KEY.device, "model.gguf", 64, 1))
            there.append(any(tmp_path.iterdir()))
            async for _ in subject.run("job", REQUEST, asyncio.Event()):
                there.append(any(tmp_path.iterdir()))
        if fault == "ok":
            await subject.close()
        return there

    there = asyncio.run(seen())
    assert there[:1] == ([] if fault == "dies_loading" else [True]) and (fault != "ok" or all(there))
    assert not any(tmp_path.iterdir())


def test_a_sound_child_runs_a_job() -> None:
    assert asyncio.run(play("ok")) == ["started", *["token"] * 5, "done"]


@pytest.mark.parametrize("fault", ["dies_at_start", "dies_loading", "dies_running"])
def test_a_crash_is_told_with_its_signal_and_last_line(fault: str) -> None:
    error = fails(fault)
    assert isinstance(error, errors.WorkerCrashed)
    assert "SIGSEGV" in error.detail and "page fault" in error.detail


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("silent_start", "loading did not finish within the timeout of 0.8 s"),
        ("silent_loading", "loading did not finish within the timeout of 0.8 s"),
        ("silent_running", "no"),
        ("stuck", "no step finished within the timeout of 0.6 s"),
    ],
)
def test_a_hang_is_ended_and_told_with_its_limit(fault: str, words: str) -> None:
    error = fails(fault)
    assert isinstance(error, errors.WorkerHung)
    assert words in error.detail


@pytest.mark.parametrize("fault", ["nonsense", "half_frame"])
def test_nonsense_on_the_wire_ends_the_child(fault: str) -> None:
    error = fails(fault)
    assert isinstance(error, errors.WorkerCrashed) and "invalid frame" in error.detail


def test_another_wire_version_is_refused_in_words() -> None:
    assert "wire version 999" in fails("old_wire").detail


def test_what_the_child_reports_keeps_its_code() -> None:
    assert isinstance(fails("no_memory"), errors.OutOfMemory)
    assert isinstance(fails("device_lost"), errors.DeviceLost)


def test_prints_of_a_library_never_reach_the_frames() -> None:
    assert asyncio.run(play("noisy"))[-1] == "done"


def test_a_flood_is_taken_whole_without_growing_the_server() -> None:
    assert asyncio.run(play("floods")).count("token") == 100_000


def test_a_child_that_does_not_stop_is_killed() -> None:
    with pytest.raises(errors.WorkerHung, match="did not end a cancelled job"):
        asyncio.run(play("deaf", cancel=True))


def test_a_job_that_does_not_stop_leaves_its_neighbour_whole() -> None:
    subject = worker("first_deaf")

    async def play() -> None:
        await subject.load("llama.cpp", LoadRequest(KEY.device, "model.gguf", 64, 1, slots=2))
        began, stop_first, stop_second = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async for _ in subject.run("first", REQUEST, stop_first):
                began.set()

        ending = asyncio.create_task(first())
        await began.wait()
        left: int | None = None  # tokens that the neighbour still takes after the first was given up
        async for frame in subject.run("second", REQUEST, stop_second):
            if frame["op"] == "token":
                stop_first.set()
                if ending.done():
                    assert not subject.alive  # no third job joins them
                    left = 20 if left is None else left - 1
                    if left == 0:
                        stop_second.set()
        assert frame["op"] == "done" and frame["cancelled"] and left is not None and left <= 0
        assert isinstance(ending.exception(), errors.WorkerHung)
        assert gone(subject.pid)

    asyncio.run(play())


def test_a_child_that_stops_when_told_ends_with_done() -> None:
    assert asyncio.run(play("ok", cancel=True))[-1] == "done"


@pytest.mark.parametrize("limit", ["silence_s", "step_s"])
def test_a_server_that_was_stopped_itself_does_not_blame_the_worker(limit: str) -> None:
    limits = replace(LIMITS, **{"silence_s": 60.0, "step_s": 60.0, limit: 0.6})
    subject, cancelling, seen = Worker(KEY, "python", limits, faulty("deaf")), asyncio.Event(), 0

    async def play() -> None:
        nonlocal seen
        try:
            await subject.load("llama.cpp", LoadRequest(KEY.device, "model.gguf", 64, 1))
            loop = asyncio.get_running_loop()
            async with contextlib.aclosing(subject.run("job", REQUEST, cancelling)) as frames:
                async for _ in frames:
                    seen += 1
                    if seen == 3:
                        loop.call_later(0.005, time.sleep, 2.5)  # as SIGSTOP and SIGCONT do to the whole loop
                    if seen == 300:
                        return
        finally:
            await subject.close()

    asyncio.run(play())
    assert seen == 300


@pytest.mark.parametrize("how", ["killed", "doubted"])
def test_a_worker_that_is_gone_before_its_job_begins_fails_it_in_words(how: str) -> None:
    """Between the choice of the worker and the start of the job lies a write to the disk."""

    async def play() -> None:
        subject = worker("ok" if how == "killed" else "device_lost")
        try:
            await subject.load("llama.cpp", LoadRequest(KEY.device, "model.gguf", 64, 1))
            if how == "killed":
                os.kill(subject.pid or 0, 9)
                while subject.alive:
                    await asyncio.sleep(0.01)
            else:
                with pytest.raises(errors.DeviceLost):
                    async for _ in subject.run("other", REQUEST, asyncio.Event()):
                        pass
            async for _ in subject.run("job", REQUEST, asyncio.Event()):
                pass
        finally:
            await subject.close()

    with pytest.raises(errors.WorkerCrashed, match="SIGKILL" if how == "killed" else "discarded"):
        asyncio.run(play())
