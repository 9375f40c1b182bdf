"""Facts about a data folder (disk, lock, readable history) are read without changing it."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.cli.doctor.storage_facts import damage, filesystem, held, storage_facts
from backend.common.file_lock import FileLock

# Lines as WSL 2 has them (one also with the newer virtiofs), of a server's mounts, and one with a blank in its name.
MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 0 8:32 / / rw,relatime - ext4 /dev/sdc rw,discard,errors=remount-ro,data=ordered
90 27 0:61 / /mnt/c rw,noatime shared:40 - 9p C:\134 rw,dirsync,aname=drvfs;path=C:\134;uid=0;gid=0;symlinkroot=/mnt/
91 90 0:33 /nested /mnt/c/nested rw,relatime - ext4 /dev/sdc rw
92 27 0:45 / /mnt/d rw,noatime - virtiofs drvfsD0 rw
93 27 0:50 / /mnt/my\040disk rw,noatime - 9p E:\134 rw,aname=drvfs
94 27 0:52 / /srv/home rw,relatime shared:7 master:1 - nfs4 files:/home rw,vers=4.2
95 94 0:53 / /srv/home rw,relatime - tmpfs none rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada", "ext4"),
        ("/mnt/c/Users", "9p"),
        ("/mnt/c", "9p"),
        ("/mnt/cd", "ext4"),
        ("/mnt/c/nested/x", "ext4"),
        ("/mnt/d/x", "drvfs"),
        ("/mnt/my disk/x", "9p"),
        ("/srv/home/ada", "tmpfs"),
    ],
)
def test_the_innermost_and_latest_mount_decides(path: str, kind: str) -> None:
    assert filesystem(Path(path), MOUNTS) == kind


def test_this_machine_s_own_mounts_are_read(tmp_path: Path) -> None:
    assert filesystem(Path("/proc/self")) == "proc" and filesystem(tmp_path)


def note(folder: Path, **fields: Any) -> None:
    known = {"pid": 4711, "host": socket.gethostname(), "system": sys.platform, "url": "http://x", "beat": time.time()}
    (folder / "server.json").write_text(json.dumps({**known, **fields}))


@pytest.mark.parametrize(
    ("fields", "is_held"),
    [
        ({}, False),  # ours would hold the lock
        ({"system": "win32"}, True),
        ({"host": "elsewhere"}, True),
        ({"system": "win32", "beat": time.time() - 3600}, False),
        ({"system": "win32", "beat": "noon"}, False),
    ],
)
def test_a_note_alone_counts_only_while_it_is_fresh_and_from_elsewhere(
    tmp_path: Path, fields: dict[str, Any], is_held: bool
) -> None:
    (tmp_path / "lock").touch()
    note(tmp_path, **fields)
    assert held(tmp_path) is is_held


def test_the_lock_is_seen_and_not_touched(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    assert held(tmp_path)
    lock.release()
    assert not held(tmp_path)


def sound(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE jobs (id TEXT)")
        db.executemany("INSERT INTO jobs VALUES (?)", [[str(number) * 90] for number in range(2000)])
    db.close()


def torn(file: Path) -> None:
    sound(file)
    with file.open("r+b") as pages:
        pages.seek(8192)
        pages.write(os.urandom(65536))


@pytest.mark.parametrize(
    ("make", "is_damaged"),
    [
        (lambda file: None, False),
        (sound, False),
        (torn, True),
        (lambda file: file.write_bytes(b"nonsense " * 1000), True),
        (lambda file: file.mkdir(), True),
    ],
    ids=["absent", "sound", "torn", "nonsense", "folder"],
)
def test_a_history_is_judged_and_left_as_it_was(
    tmp_path: Path, make: Callable[[Path], object], is_damaged: bool
) -> None:
    file = tmp_path / "jobs.sqlite3"
    make(file)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.is_file()}
    assert bool(damage(file)) is is_damaged
    after = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.is_file()}
    assert {name: after[name] for name in before} == before


def test_a_folder_that_is_not_there_yet_is_judged_by_where_it_would_be(tmp_path: Path) -> None:
    facts = storage_facts(tmp_path / "a" / "b")
    assert (facts.exists, facts.writable, facts.held, facts.holder, facts.history) == (False, True, False, None, None)
    assert facts.free_bytes and facts.filesystem == filesystem(tmp_path)


def test_a_file_in_the_folder_s_place_cannot_be_written_into(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert storage_facts(tmp_path / "data").writable is False
