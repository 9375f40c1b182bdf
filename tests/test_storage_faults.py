"""Full or read-only disks, a locked history, and unexpected files in the data folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, DiskFull, Internal, TouchstoneError
from backend.jobs.live_job import new_row
from backend.jobs.registry import JobRegistry
from backend.jobs.store.sqlite import JobStore
from backend.manager.core import Core
from tests.chaos.disk import Disk
from tests.chaos.service import TINY
from tests.faulty import faulty
from tests.service import Server, first_line, start_server, wait_for
from tests.test_executor import _config

SHORT: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "options": {"max_tokens": 4}, "fallback": "never"}
TUNE: dict[str, Any] = {"task": "music", "options": {"form": "reel", "bars": 8, "seed": 3}}
# How much is left on the disk when a job begins: each write of a job is reached with some of them.
LEFT_BYTES = [0, 1, 4096, 20_000, 60_000, 200_000, 700_000, 1_500_000]


# What is wrong with the folder before the start


def start_and_stop(folder: Path) -> None:
    async def play() -> None:
        core = Core(load_settings({"config": _config(folder)}, {}), faulty("ok"))
        await core.start()
        await core.stop()

    asyncio.run(play())


def data_of(folder: Path) -> Path:
    return load_settings({"config": _config(folder)}, {}).data_dir


WRONG_THINGS = [
    "jobs.sqlite3",
    "lock",
    "reserve",
    "artifacts",
    "models",
    "runtimes",
    "buffers.json",
    "proofs.json",
    "server.json",
    "stop",
]


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
@pytest.mark.parametrize("name", WRONG_THINGS)
def test_what_lies_where_it_should_not_is_told_or_does_no_harm(tmp_path: Path, name: str, kind: str) -> None:
    """Whatever lies in the data folder, the server starts, or says in words why not and lets go of the folder."""
    place = data_of(tmp_path) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        (place / "inner").mkdir(parents=True)
    elif kind == "file":
        place.write_bytes(b"\x00\xff not what it should be" * 40)
    else:
        place.symlink_to(tmp_path / "nowhere" / "at all")
    try:
        start_and_stop(tmp_path)
    except TouchstoneError as error:
        assert isinstance(error, Configuration), error
        assert error.detail and error.remedy
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
        start_and_stop(tmp_path)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that nobody may write to: by its file system for an administrator, by its mode for others."""
    if os.geteuid() == 0:
        for words in (["--bind", str(folder), str(folder)], ["-o", "remount,bind,ro", str(folder)]):
            if subprocess.run(["mount", *words], capture_output=True).returncode:
                pytest.skip("this administrator may not mount")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            yield
        finally:
            folder.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("used_before", [True, False])
def test_a_read_only_data_folder_is_refused_in_words(tmp_path: Path, used_before: bool) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    if used_before:
        start_server(data_dir).stop()
    with read_only(data_dir):
        log = tmp_path / "second.log"
        process, line = first_line(log, ["--data-dir", str(data_dir)], {})
        assert (process.wait(20), line) == (2, "")
        said = log.read_text()
    assert "Read-only" in said or "Permission denied" in said
    assert str(data_dir) in said and "TOUCHSTONE_DATA_DIR" in said and "Traceback" not in said


def test_a_history_that_another_program_holds_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.store.sqlite.BUSY_S", 0.05)
    start_and_stop(tmp_path)
    with contextlib.closing(sqlite3.connect(data_of(tmp_path) / "jobs.sqlite3")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Configuration, match="locked") as caught:
            start_and_stop(tmp_path)
        assert "other program" in caught.value.remedy
    start_and_stop(tmp_path)


# What goes wrong while the server runs


def in_book(folder: Path, play: Callable[[JobStore, JobRegistry], Any]) -> None:
    async def once() -> None:
        store = JobStore(folder / "jobs.sqlite3")
        book = JobRegistry(store)
        await book.open()
        try:
            await play(store, book)
        finally:
            await book.close()

    asyncio.run(once())


def test_a_history_that_another_program_holds_for_a_while_is_told_and_then_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.store.sqlite.BUSY_S", 0.05)

    async def play(store: JobStore, book: JobRegistry) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        with contextlib.closing(sqlite3.connect(store.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Internal, match="locked") as caught:
                await book.add(new_row("text", "m", {}, "c"))
            assert "other program" in caught.value.remedy
            await job.emit("token", {"text": "a", "count": 1})
            async with asyncio.timeout(10):
                while book.storage_error is None:
                    await asyncio.sleep(0.01)
            assert (await book.views([], None, 10, None))["jobs"][0]["id"] == job.id, "reading goes on"
        async with asyncio.timeout(10):
            while book.storage_error is not None:
                await asyncio.sleep(0.01)
        assert [event.event for event in await store.events(job.id)] == ["queued", "token"]

    in_book(tmp_path, play)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_history_that_was_taken_away_takes_no_job_that_would_be_lost(tmp_path: Path, how: str) -> None:
    async def play(store: JobStore, book: JobRegistry) -> None:
        await book.add(new_row("text", "m", {}, "c"))
        if how == "replaced":
            shutil.copy(store.path, tmp_path / "other")
            (tmp_path / "other").replace(store.path)
        else:
            store.path.unlink()
        with pytest.raises(Internal, match="removed or replaced") as caught:
            await book.add(new_row("text", "m", {}, "c"))
        assert "Restart" in caught.value.remedy

    in_book(tmp_path, play)


def test_room_that_cannot_be_kept_for_another_reason_is_no_full_disk(tmp_path: Path) -> None:
    async def play(store: JobStore, book: JobRegistry) -> None:
        with pytest.raises(Internal, match="cannot be used") as caught:
            await book.add(new_row("text", "m", {}, "c"))
        assert not isinstance(caught.value, DiskFull) and "permissions" in caught.value.remedy

    (tmp_path / "reserve" / "inner").mkdir(parents=True)
    in_book(tmp_path, play)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Disk, Server]]:
    """A server whose data folder lies on a disk that can be filled."""
    folder = tmp_path_factory.mktemp("small")
    disk = Disk(folder / "data")
    disk.mount()
    if not disk.small:
        pytest.skip("only an administrator may mount the small disk that this fills")
    config = folder / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: {TINY}}}}}\ndefault_models: {{text: tiny}}\n")
    running = None
    try:
        running = start_server(disk.folder, "--config", str(config))
        running.http.get("/api/devices", params={"wait_s": 60})
        yield disk, running
    finally:
        if running:
            running.stop(signal.SIGKILL)
        disk.unmount()


def ending(server: Server, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """How a request ended: `done`, or the code of its problem, and the answer."""
    answer = server.http.post("/api/generate", json=body)
    said = answer.json()
    return ("done" if answer.status_code == 200 else said["code"]), said


def test_a_disk_full_at_any_write_is_told_and_harms_nothing_that_was_finished(small: tuple[Disk, Server]) -> None:
    disk, server = small
    how, tune = ending(server, TUNE)
    assert how == "done", tune
    _, text = ending(server, SHORT)
    files = {made["url"]: server.http.get(made["url"]).content for made in tune["output"]["artifacts"]}
    seen = set()
    for left in LEFT_BYTES:
        disk.fill(left)
        for body in (SHORT, TUNE):
            how, said = ending(server, body)
            assert how in ("done", "disk_full"), (left, said)
            seen.add(how)
            if how != "done":
                assert said["status"] == 507 and "space" in said["detail"] or "full" in said["detail"], said
                assert said["remedy"]
        assert server.http.get("/api/health").status_code == 200
        assert server.job(text["id"])["output"]["text"] == text["output"]["text"]
        for url, content in files.items():
            assert server.http.get(url).content == content
        disk.free()
        assert ending(server, SHORT)[0] == "done", f"after {left} bytes were left and room was made again"
    assert seen == {"done", "disk_full"}
    wait_for(lambda: server.http.get("/api/health").json()["status"] == "ok")
    assert not list(disk.folder.rglob(".making/*")), "what was not finished is gone"
    with contextlib.closing(sqlite3.connect(disk.folder / "jobs.sqlite3", timeout=10)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    log = server.log.read_text()
    assert "Traceback" not in log and "unhandled exception" not in log, log[-3000:]


def test_a_disk_that_is_nearly_full_is_said_in_time(small: tuple[Disk, Server]) -> None:
    _, server = small  # has less room than is to stay free
    health = server.http.get("/api/health").json()
    (problem,) = [each for each in health["problems"] if each["code"] == "disk_low"]
    assert problem["subject"] == "storage" and "MB free" in problem["detail"] and problem["remedy"]
    assert "touchstone_disk_free_bytes" in server.http.get("/metrics").text


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_what_the_server_writes_is_for_its_user_alone(small: tuple[Disk, Server]) -> None:
    disk, server = small
    ending(server, TUNE)
    written = [path for path in disk.folder.rglob("*") if path.name != "ballast"]
    assert {"jobs.sqlite3", "reserve", "proofs.json", "server.json", "artifacts"} <= {path.name for path in written}
    for path in written:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_file_that_somebody_removed_is_told(small: tuple[Disk, Server]) -> None:
    disk, server = small
    _, tune = ending(server, TUNE)
    first, *rest = tune["output"]["artifacts"]
    (disk.folder / "artifacts" / tune["id"] / first["name"]).unlink()
    answer = server.http.get(first["url"])
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "was deleted" in answer.json()["detail"] and "Rerun the job" in answer.json()["remedy"]
    assert rest and server.http.get(rest[0]["url"]).status_code == 200
    shutil.rmtree(disk.folder / "artifacts" / tune["id"])
    assert server.http.get(rest[0]["url"]).status_code == 404
    assert server.http.delete(f"/api/jobs/{tune['id']}").status_code == 204
