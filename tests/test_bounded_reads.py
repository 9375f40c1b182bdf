"""Reads that never return: a timeout, nothing that waits for them, and recovery when they do return."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from backend.common import bounded_reads
from backend.common.bounded_reads import LOST_READS, NoAnswer, bounded_read, names_in, paths_without_answer, text_of
from backend.common.byte_sizes import parse_bytes
from backend.common.files import open_regular_file, read_text
from tests.service import ROOT

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def lost(folder: Path) -> list[Path]:
    """Return the paths without an answer in a test's own folder, which may be the folder itself."""
    return [path for path in paths_without_answer() if path.is_relative_to(folder)]


class Stuck:
    """A read that returns when it is released."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._released = threading.Event()

    def __call__(self) -> str:
        self._released.wait(60)
        return "late"

    def release(self) -> None:
        self._released.set()
        until = time.monotonic() + 10
        while lost(self._folder) and time.monotonic() < until:
            time.sleep(0.001)


def test_a_read_returns_its_result_or_its_error(tmp_path: Path) -> None:
    assert bounded_read(tmp_path, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        bounded_read(tmp_path, lambda: 1 // 0)
    assert bounded_read(tmp_path, lambda: bounded_read(tmp_path, threading.get_ident) == threading.get_ident())


def test_a_read_without_an_answer_fails_at_once_until_it_returns(tmp_path: Path) -> None:
    stuck, path = Stuck(tmp_path), tmp_path / "a"
    with pytest.raises(NoAnswer, match="no answer within 0.01 s"):
        bounded_read(path, stuck, 0.01)
    began = time.monotonic()
    with pytest.raises(NoAnswer):
        bounded_read(path, stuck, 60)
    assert time.monotonic() - began < 5 and lost(tmp_path) == [path]
    assert bounded_read(tmp_path / "b", lambda: 1) == 1, "another file of the folder answers"
    stuck.release()
    assert bounded_read(path, lambda: 1) == 1 and not lost(tmp_path)


def test_a_folder_with_many_reads_without_an_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reads, "LATER_LIMIT_S", 0.01)
    stuck = Stuck(tmp_path)
    for number in range(LOST_READS):
        with pytest.raises(NoAnswer):
            bounded_read(tmp_path / str(number), stuck, 0.01)
    with pytest.raises(NoAnswer):
        bounded_read(tmp_path / "other", lambda: 1, 60)
    stuck.release()
    stuck = Stuck(tmp_path)
    with pytest.raises(NoAnswer):
        bounded_read(tmp_path, stuck, 0.01)
    with pytest.raises(NoAnswer):
        bounded_read(tmp_path / "inside", lambda: 1, 60)
    stuck.release()


@needs_pipes
def test_small_files(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(b" text\n\0")
    assert (text_of(file), text_of(tmp_path / "none"), names_in(tmp_path)) == ("text", "", ["file", "pipe"])
    with pytest.raises(OSError, match="not a regular file"):
        open_regular_file(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_text(Path("/dev/zero"))
    file.write_bytes(b"a\r\nb")
    assert read_text(file) == "a\nb"


@needs_pipes
def test_a_program_ends_although_a_read_does_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = (
        "import sys; from pathlib import Path; from backend.common import bounded_reads as b; b.LIMIT_S = 0.05\n"
        f"b.bounded_read.__defaults__ = (0.05,); print(repr(b.text_of(Path({str(tmp_path / 'pipe')!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.returncode) == ("''\n", 0)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("8031 MB", 8031 << 20),
        ("8031MiB", 8031 << 20),
        ("8 GB", 8 << 30),
        ("7.84 GiB", int(7.84 * (1 << 30))),
        ("7,84 GiB", int(7.84 * (1 << 30))),
        ("8,031 MB", 8031 << 20),
        ("8\u00a0031 MB", 8031 << 20),
        ("1,024 GB", None),
        ("8421113856", 8421113856),
        ("512 bytes", 512),
        (8421113856, 8421113856),
        (0, 0),
        ([0, 0, 0, 0, 2, 0, 0, 0], 2 << 32),
        (-1048576, None),
        (1 << 70, None),
        (True, None),
        ([256], None),
        ([], None),
        ("ERR!", None),
        ("-5 MB", None),
        ("", None),
        (None, None),
        (2.0, 2),
        (float("nan"), None),
    ],
)
def test_sizes_as_drivers_write_them(value: object, size: int | None) -> None:
    parsed = parse_bytes(value)
    assert parsed == size or (size and parsed and abs(parsed - size) <= 1)
