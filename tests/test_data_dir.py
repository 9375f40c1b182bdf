"""One server per data folder: the error of a second one names the first."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from backend.common import data_dir
from backend.common.config.settings import load_settings
from backend.common.data_dir import STALE_S, DataDir, scratch_prefix
from backend.common.errors import Configuration
from backend.common.json_file import JsonFile
from backend.manager import ModelManager
from backend.server.auth_token import kept_token


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    first = DataDir(tmp_path / "data")
    first.acquire()
    first.heartbeat("http://127.0.0.1:8000")
    with pytest.raises(Configuration, match=f"process {os.getpid()} .*http://127.0.0.1:8000"):
        DataDir(tmp_path / "data").acquire()
    first.release()
    second = DataDir(tmp_path / "data")
    second.acquire()
    second.release()


def note(folder: Path, **changes: object) -> None:
    whole = {"pid": 1, "host": "elsewhere", "system": "win32", "url": "http://x", "beat": time.time(), **changes}
    (folder / "server.json").write_text(json.dumps(whole))


def test_a_fresh_beat_of_another_system_counts_as_a_holder(tmp_path: Path) -> None:
    note(tmp_path)
    with pytest.raises(Configuration, match="elsewhere"):
        DataDir(tmp_path).acquire()


@pytest.mark.parametrize("beat", ["old", None, "soon"])
def test_an_old_or_senseless_beat_does_not(tmp_path: Path, beat: str | None) -> None:
    note(tmp_path, beat=time.time() - 2 * STALE_S if beat == "old" else beat)
    folder = DataDir(tmp_path)
    folder.acquire()
    folder.release()


@pytest.mark.parametrize("said", ["{half", "[1]", "null", "5", None])
def test_a_damaged_note_does_not_stop_anyone(tmp_path: Path, said: str | None) -> None:
    note = tmp_path / "server.json"
    note.mkdir() if said is None else note.write_text(said)
    assert DataDir(tmp_path).holder() is None
    folder = DataDir(tmp_path)
    folder.acquire()
    folder.release()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Configuration, match="cannot be used"):
        DataDir(tmp_path / "file" / "data").acquire()


@pytest.mark.parametrize("name", ["with blank", "épée", "資料夾", "🎵", "a'b;c&d[e]"])
def test_any_name_of_a_folder_works(tmp_path: Path, name: str) -> None:
    folder = DataDir(tmp_path / name)
    folder.acquire()
    folder.heartbeat("http://x")
    holder = folder.holder()
    assert holder and holder["url"] == "http://x"
    folder.release()
    assert folder.holder() is None


def test_what_a_killed_server_left_behind_is_removed_by_the_next_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    data = tmp_path / "data"
    data.mkdir()
    (data / "server.4711").write_text("half a bea")
    (data / "server.json").write_text("{}")
    left = Path(tempfile.mkdtemp(prefix=scratch_prefix(data)))
    (left / "load.log").write_text("llama_model_loader: …")
    others = {Path(tempfile.mkdtemp(prefix=prefix)) for prefix in (scratch_prefix(tmp_path / "other"), "touchstone-")}
    folder = DataDir(data)
    folder.acquire()
    assert set(temporary.iterdir()) == others
    assert {path.name for path in data.iterdir()} == {"lock", "server.json"}
    living = Path(tempfile.mkdtemp(prefix=scratch_prefix(data)))
    with pytest.raises(Configuration):
        DataDir(data).acquire()
    assert living.exists(), "a server that may not have the folder removes nothing"
    folder.release()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")
def test_a_folder_that_is_made_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "new")
    folder.acquire()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.release()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["token", "jobs.sqlite3", "proofs.json", "server.json", "lock", "stop", "models.json"])
def test_a_pipe_in_the_folder_is_named_before_it_is_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(Configuration, match=f"^{name} in the data folder .* is a pipe or a device") as caught:
        ModelManager(load_settings({"storage.data_dir": str(tmp_path)}, {}))
    assert "Delete it" in caught.value.remedy


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_becomes_a_pipe_later_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("token", "server.json", "stop", "kept.json"):
        os.mkfifo(tmp_path / name)
    folder = DataDir(tmp_path)
    assert folder.holder() is None and not folder.stop_asked()
    assert kept_token(tmp_path) is None
    assert JsonFile(tmp_path / "kept.json", "a", 1).read() is None


def test_a_folder_that_does_not_answer_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads of a dead mount never return; here they return when the test ends."""
    ended = threading.Event()
    monkeypatch.setattr(data_dir, "ANSWER_S", 0.05)
    monkeypatch.setattr(data_dir, "_special_file", lambda folder: ended.wait(30))
    try:
        with pytest.raises(Configuration, match=r"cannot be read: no answer within 0\.05 s") as caught:
            DataDir(tmp_path).check()
        assert f"ls {tmp_path}" in caught.value.remedy
        JsonFile(tmp_path / "kept.json", "a", 1).write({})  # at once: nothing in that folder is tried again
        assert not (tmp_path / "kept.json").exists() and kept_token(tmp_path) is None
    finally:
        ended.set()
