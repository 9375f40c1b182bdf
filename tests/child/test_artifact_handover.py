"""A worker's file is complete in the job's folder or absent, whatever fails while it is delivered."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from backend.child.artifact_writer import MAKING, ArtifactWriter, disk_full_error


def writer(folder: Path, content: bytes = b"sound") -> ArtifactWriter:
    """Return a writer with one file `tune.wav` in its temporary folder."""
    made = ArtifactWriter(str(folder))
    Path(made.open(), "tune.wav").write_bytes(content)
    return made


def test_a_delivered_file_is_moved_with_its_size(tmp_path: Path) -> None:
    assert writer(tmp_path / "job").deliver("tune.wav") == 5
    assert (tmp_path / "job" / "tune.wav").read_bytes() == b"sound"
    assert list((tmp_path / "job" / MAKING).iterdir()) == []


def test_an_empty_file_is_delivered(tmp_path: Path) -> None:
    assert writer(tmp_path, b"").deliver("tune.wav") == 0
    assert (tmp_path / "tune.wav").exists()


def test_a_second_delivery_replaces_the_file(tmp_path: Path) -> None:
    writer(tmp_path, b"first").deliver("tune.wav")
    writer(tmp_path, b"second one").deliver("tune.wav")
    assert (tmp_path / "tune.wav").read_bytes() == b"second one"


def test_the_temporary_folder_may_exist_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    made = ArtifactWriter(str(tmp_path / "deep" / "job"))
    assert made.open() == made.open()
    assert Path(made.open()).stat().st_mode & 0o077 == 0


def test_a_job_without_files_gets_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ArtifactWriter("").open() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_never_written_is_an_os_error(tmp_path: Path) -> None:
    made = writer(tmp_path)
    with pytest.raises(FileNotFoundError):
        made.deliver("other.wav")
    assert not (tmp_path / "other.wav").exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_leaves_no_partial_file_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    made = writer(tmp_path)

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if call == "fsync" else Path, call, full)
    with pytest.raises(OSError, match="space") as caught:
        made.deliver("tune.wav")
    assert not (tmp_path / "tune.wav").exists()
    assert disk_full_error(caught.value)


def test_the_bytes_are_flushed_before_the_file_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = writer(tmp_path)
    order: list[str] = []
    flush, move = os.fsync, Path.replace

    def recorded_flush(fd: int) -> None:
        order.append("flush")
        flush(fd)

    def recorded_move(file: Path, target: Path) -> Path:
        order.append("move")
        return move(file, target)

    monkeypatch.setattr(os, "fsync", recorded_flush)
    monkeypatch.setattr(Path, "replace", recorded_move)
    made.deliver("tune.wav")
    assert order == ["flush", "move", "flush"]  # the last one flushes the folder's entry


@pytest.mark.parametrize(
    ("number", "is_full"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EACCES, False), (None, False)],
)
def test_only_errors_of_space_become_disk_full(number: int | None, is_full: bool) -> None:
    error = OSError("broken") if number is None else OSError(number, os.strerror(number))
    assert (disk_full_error(error) is not None) == is_full
