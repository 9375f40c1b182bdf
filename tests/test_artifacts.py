"""Files of jobs: complete or absent, deleted with their job, counted by the retention."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from backend.child.artifact_writer import MAKING, ArtifactWriter, disk_full_error
from backend.jobs.artifacts import ArtifactStore
from backend.jobs.live_job import new_row
from backend.jobs.store.sqlite import JobStore


def made(folder: Path, name: str, size: int = 10) -> None:
    """Puts a file there as a worker does."""
    box = ArtifactWriter(str(folder))
    (Path(box.open()) / name).write_bytes(b"x" * size)
    assert box.deliver(name) == size


def test_a_file_is_not_in_its_place_before_it_is_handed_over(tmp_path: Path) -> None:
    box = ArtifactWriter(str(tmp_path / "job"))
    making = Path(box.open())
    (making / "tune.wav").write_bytes(b"RIFF")
    assert [file.name for file in (tmp_path / "job").iterdir()] == [MAKING]
    assert box.deliver("tune.wav") == 4
    assert (tmp_path / "job" / "tune.wav").read_bytes() == b"RIFF" and not list(making.iterdir())


def test_a_job_without_files_gets_no_folder(tmp_path: Path) -> None:
    assert ArtifactWriter("").open() == ""
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_handed_over_goes_at_the_end_and_at_the_next_start(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    made(artifacts.folder("one"), "whole.wav")
    for job in ("one", "two", "unknown"):
        (Path(ArtifactWriter(str(artifacts.folder(job))).open()) / "half.wav").write_bytes(b"x")
    artifacts.sweep({"one", "two"})
    assert [file.name for file in tmp_path.rglob("*")] == ["one", "whole.wav"]


def test_another_attempt_begins_with_an_empty_folder(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    made(artifacts.folder("job"), "tune.wav")
    artifacts.begin("job")
    assert not artifacts.folder("job").exists()


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_a_full_disk_is_told_from_other_troubles(number: int, is_full: bool) -> None:
    assert (disk_full_error(OSError(number, "said")) is not None) is is_full


def test_deleting_a_job_takes_its_files_along_and_a_start_those_of_unknown_jobs(tmp_path: Path) -> None:
    row = {**new_row("music", "m", {}, "c"), "status": "done"}

    async def play() -> None:
        store = JobStore(tmp_path / "jobs.sqlite3")
        made(store.artifacts.folder(row["id"]), "tune.wav")
        made(store.artifacts.folder("gone"), "tune.wav")
        await store.open()  # before the job is known: both are strangers
        assert store.artifacts.sizes() == {}
        await store.add(row)
        made(store.artifacts.folder(row["id"]), "tune.wav")
        await store.delete(row["id"])
        assert store.artifacts.sizes() == {}
        await store.close()

    asyncio.run(play())


def test_the_retention_counts_files_and_forgets_no_more_than_needed(tmp_path: Path) -> None:
    rows = [{**new_row("music", "m", {}, "c"), "status": "done", "ended_at": "2026"} for _ in range(6)]

    async def play() -> None:
        store = JobStore(tmp_path / "jobs.sqlite3")
        await store.open()
        for row in rows:
            await store.add(row)
            made(store.artifacts.folder(row["id"]), "tune.wav", 1_000_000)
        assert await store.sweep("2020", 7_000_000) == 0
        assert await store.sweep("2020", 3_500_000) == 3
        left = {row["id"] for row in rows[3:]}
        assert {job["id"] for job in await store.jobs()} == left == set(store.artifacts.sizes())
        await store.close()

    asyncio.run(play())
