"""One server per data folder: the error of a second one names the first."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from backend.common.data_dir import STALE_S, DataDir, scratch_prefix
from backend.common.errors import Configuration


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
