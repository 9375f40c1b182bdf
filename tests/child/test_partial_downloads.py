"""Partial downloads: their version, when they are resumed, and when they are deleted."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.download import http, workspace
from backend.child.download.partial_file import FileVersion, PartialFile
from backend.child.download.workspace import NAME, PART_KEPT_S, lock_for, part_for, sweep, temporary_for
from backend.child.progress_report import ProgressReport

VERSION = FileVersion("address", 10, '"etag"', None)
SHA = "a" * 64


def report() -> ProgressReport:
    return ProgressReport(io.StringIO())


def partial(folder: Path, content: bytes = b"") -> PartialFile:
    """Return a partial file of VERSION that holds `content`."""
    made = PartialFile(folder, "x.gguf")
    made.create(VERSION)
    with made.open() as file:
        made.append(file, content)
    return made


def facts(folder: Path) -> Path:
    return part_for(folder, "x.gguf") / "facts.json"


def test_another_process_continues_with_the_bytes_and_their_version(tmp_path: Path) -> None:
    partial(tmp_path, b"01234")
    again = PartialFile(tmp_path, "x.gguf")
    assert (again.version(), again.size) == (VERSION, 5)
    again.hash_existing(report(), 10)
    with again.open() as file:
        assert again.append(file, b"56789") == 10
    assert again.file.read_bytes() == b"0123456789"
    assert again.digest.hexdigest() == hashlib.sha256(b"0123456789").hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00\x00",
        json.dumps({"address": "a"}),
        json.dumps({**vars(VERSION), "unknown": 1}),
    ],
)
def test_bytes_with_a_torn_version_are_not_continued(tmp_path: Path, content: str) -> None:
    made = partial(tmp_path, b"01234")
    facts(tmp_path).write_text(content)
    assert made.version() is None


def test_a_version_without_bytes_is_nothing_to_continue(tmp_path: Path) -> None:
    assert partial(tmp_path).version() is None


def test_bytes_without_a_version_are_not_continued(tmp_path: Path) -> None:
    made = partial(tmp_path, b"01234")
    facts(tmp_path).unlink()
    assert made.version() is None


def test_a_new_version_drops_the_bytes_of_the_old_one(tmp_path: Path) -> None:
    made = partial(tmp_path, b"old bytes")
    made.create(FileVersion("other", 3, None, SHA))
    with made.open() as file:
        made.append(file, b"new")
    assert made.file.read_bytes() == b"new"
    assert made.digest.hexdigest() == hashlib.sha256(b"new").hexdigest()
    assert PartialFile(tmp_path, "x.gguf").version() == FileVersion("other", 3, None, SHA)


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.lists(st.binary(max_size=30), max_size=6), st.integers(0, 200))
def test_the_digest_is_that_of_the_file_after_any_cut(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], cut: int
) -> None:
    made = partial(tmp_path_factory.mktemp("part"))
    with made.open() as file:
        for chunk in chunks:
            made.append(file, chunk)
    made.truncate(min(cut, made.size))
    made.hash_existing(report(), None)
    with made.open() as file:
        assert made.append(file, b"end") == made.size
    assert made.digest.hexdigest() == hashlib.sha256(made.file.read_bytes()).hexdigest()


def test_bytes_that_were_hashed_while_they_arrived_are_not_read_again(tmp_path: Path) -> None:
    out = io.StringIO()
    partial(tmp_path, b"01234").hash_existing(ProgressReport(out), 10)
    assert out.getvalue() == ""


def test_a_short_write_of_the_system_is_completed(tmp_path: Path) -> None:
    class Short(io.BytesIO):
        """A file that accepts two bytes at a time."""

        def write(self, data: Any) -> int:
            return super().write(bytes(data[:2]))

    made, file = partial(tmp_path), Short()
    assert made.append(file, b"0123456") == 7
    assert file.getvalue() == b"0123456"


def test_removal_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    made = partial(tmp_path, b"01234")
    made.remove()
    made.remove()
    assert (made.size, list(tmp_path.iterdir())) == (0, [])


def answer(status: int, start: int | None) -> httpx.Response:
    headers = {} if start is None else {"Content-Range": f"bytes {start}-9/10"}
    return httpx.Response(status, headers=headers)


CONTINUATIONS = {
    "the same strong validator": ('"v1"', '"v1"', None, None, 206, 5, True),
    "another validator": ('"v1"', '"v2"', SHA, SHA, 206, 5, False),
    "no validator but the same checksum": (None, None, SHA, SHA, 206, 5, True),
    "a validator that is gone but the same checksum": ('"v1"', None, SHA, SHA, 206, 5, True),
    "a validator that is gone and no checksum": ('"v1"', None, None, None, 206, 5, False),
    "another checksum": (None, None, SHA, "b" * 64, 206, 5, False),
    "no proof at all": (None, None, None, None, 206, 5, False),
    "another start": ('"v1"', '"v1"', SHA, SHA, 206, 4, False),
    "no range": ('"v1"', '"v1"', SHA, SHA, 206, None, False),
    "the complete file": ('"v1"', '"v1"', SHA, SHA, 200, 5, False),
}


@pytest.mark.parametrize("case", CONTINUATIONS)
def test_a_response_continues_the_file_only_with_a_proof(case: str) -> None:
    before, now, old_sum, new_sum, status, start, expected = CONTINUATIONS[case]
    earlier, version = FileVersion("a", 10, before, old_sum), FileVersion("a", 10, now, new_sum)
    assert http._continues(earlier, version, 5, answer(status, start)) is expected


def test_a_file_of_another_size_is_not_continued() -> None:
    earlier, version = FileVersion("a", 10, '"v1"', SHA), FileVersion("a", 11, '"v1"', SHA)
    assert not http._continues(earlier, version, 5, answer(206, 5))


def aged(folder: Path, age_s: float) -> Path:
    """Make a folder with a file whose times lie `age_s` before 1,000,000,000 s."""
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"x")
    for path in (folder / "x", folder):
        os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return folder


@pytest.mark.parametrize(
    ("age_s", "is_kept"), [(0, True), (PART_KEPT_S - 60, True), (PART_KEPT_S + 60, False), (-60, True)]
)
def test_partial_files_are_kept_for_a_month(tmp_path: Path, age_s: float, is_kept: bool) -> None:
    part = aged(part_for(tmp_path, "x.gguf"), age_s)
    sweep(tmp_path, 1e9)
    assert part.exists() == is_kept


def test_a_partial_file_that_grew_lately_is_kept_even_if_its_folder_is_old(tmp_path: Path) -> None:
    part = aged(part_for(tmp_path, "x.gguf"), 2 * PART_KEPT_S)
    os.utime(part / "x", (1e9, 1e9))
    sweep(tmp_path, 1e9)
    assert part.exists()


def test_temporary_folders_of_killed_downloads_are_deleted_whatever_their_age(tmp_path: Path) -> None:
    temporary = aged(temporary_for(tmp_path, "x.gguf"), 0)
    sweep(tmp_path, 1e9)
    assert not temporary.exists()


def test_folders_that_another_download_uses_are_kept(tmp_path: Path) -> None:
    temporary = aged(temporary_for(tmp_path, "x.gguf"), 0)
    lock = lock_for(tmp_path, "x.gguf")
    assert lock.acquire()
    sweep(tmp_path, 1e9)
    assert temporary.exists()
    lock.release()
    sweep(tmp_path, 1e9)
    assert not temporary.exists()


def test_a_missing_workspace_is_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(tmp_path / NAME, 1e9)
    assert list(tmp_path.iterdir()) == []


def test_a_download_waits_for_another_of_the_same_file_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, out = lock_for(tmp_path, "x.gguf"), io.StringIO()
    assert lock.acquire()
    monkeypatch.setattr("backend.child.download.workspace.time.sleep", lambda _seconds: lock.release())
    with workspace.exclusive(tmp_path, "x.gguf", ProgressReport(out)):
        assert not lock_for(tmp_path, "x.gguf").acquire()
    assert json.loads(out.getvalue())["phase"] == "wait"
    assert lock_for(tmp_path, "x.gguf").acquire()


def test_the_lock_is_released_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), workspace.exclusive(tmp_path, "x.gguf", report()):
        raise RuntimeError
    assert lock_for(tmp_path, "x.gguf").acquire()
