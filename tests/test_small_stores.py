"""Small files on disk: torn writes, locks between processes, device names of Windows, free space, and where data is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common import installation
from backend.common.data_dir import SCRATCH_HOME_LIMIT, DataDir, scratch_home, scratch_prefix
from backend.common.engine_api import RunRequest
from backend.common.errors import Configuration
from backend.common.file_lock import FileLock
from backend.common.files import is_reserved_windows_name, read_text, require_disk_space, require_regular_file
from backend.common.installation import ROOT
from backend.common.json_file import JsonFile
from backend.common.seeds import SEEDS, offset_seed
from backend.common.token_batching import flush_interval_s

FEW = settings(max_examples=50, derandomize=True, database=None, deadline=None)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@FEW
@given(JSON)
def test_content_is_read_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    file = JsonFile(tmp_path_factory.getbasetemp() / "content.json", "rows", 2)
    file.write(content)
    assert file.read() == content


def test_a_torn_write_is_an_absent_file_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    file = JsonFile(path, "speeds", 1)
    file.write({"cpu": 1.5})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert file.read() is None
    path.write_bytes(whole)
    assert file.read() == {"cpu": 1.5}


@pytest.mark.parametrize("text", ["[]", "null", "5", '{"format": 1}', '{"speeds": {}}', '{"format": "1", "speeds": 3}'])
def test_valid_json_of_another_form_is_an_absent_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert JsonFile(tmp_path / "x.json", "speeds", 1).read() is None


def test_a_file_of_an_older_format_is_replaced(tmp_path: Path) -> None:
    JsonFile(tmp_path / "x.json", "rows", 1).write([1])
    newer = JsonFile(tmp_path / "x.json", "rows", 2)
    assert newer.read() is None
    newer.write([2])
    assert newer.read() == [2] and JsonFile(tmp_path / "x.json", "rows", 1).read() is None


def test_a_failed_write_keeps_the_old_content_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = JsonFile(tmp_path / "x.json", "rows", 1)
    file.write([1])
    (tmp_path / "x.tmp").mkdir()  # where the new content would be written first
    file.write([2])
    assert file.read() == [1] and "failed to write x.json" in caplog.text


def test_without_a_path_nothing_is_stored() -> None:
    file = JsonFile(None, "rows", 1)
    file.write([1])
    assert file.read() is None


HOLD = """
import sys
from pathlib import Path
from backend.common.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a process that locks the file, with its answer; it ends with the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()
        child.wait()


def test_a_lock_of_another_process_is_respected_until_it_dies(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with holder(tmp_path / "lock") as (child, answer):
        assert answer == "True"
        assert not lock.acquire() and not lock.held
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert lock.acquire() and lock.held
    with holder(tmp_path / "lock") as (_, answer):
        assert answer == "False"


def test_a_released_lock_is_free_for_others_and_its_file_stays(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire() and not second.acquire()
    first.release()
    first.release()
    assert second.acquire() and (tmp_path / "lock").exists()


def test_a_lock_in_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "no" / "lock").acquire()


def test_a_data_folder_held_by_another_process_names_its_address(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with holder(tmp_path / "lock"):
        (tmp_path / "server.json").write_text(json.dumps({"pid": 77, "host": "stone", "url": "http://127.0.0.1:8000"}))
        with pytest.raises(Configuration, match=r"process 77 on stone, serving http://127\.0\.0\.1:8000"):
            data.acquire()
        (tmp_path / "server.json").unlink()
        with pytest.raises(Configuration, match="another process"):
            data.acquire()
    data.acquire()
    data.release()


def test_a_request_to_stop_reaches_only_the_server_that_it_names(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.acquire()
    assert not data.stop_asked()
    data.ask_to_stop("an earlier server")
    assert not data.stop_asked()
    data.ask_to_stop(data.id)
    assert data.stop_asked()
    (tmp_path / "stop").write_bytes(b"\xff\xfe")
    assert not data.stop_asked()
    data.release()
    assert not (tmp_path / "stop").exists()


def test_a_heartbeat_keeps_the_address_of_the_last_one(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.acquire()
    data.heartbeat("http://127.0.0.1:8000")
    data.heartbeat()
    assert (data.holder() or {})["url"] == "http://127.0.0.1:8000"
    assert [path.name for path in tmp_path.glob("server*")] == ["server.json"]
    data.release()
    assert data.holder() is None


def test_temporary_folders_of_two_data_folders_differ_and_leave_room_for_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert scratch_prefix(Path("/a")) != scratch_prefix(Path("/b"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * SCRATCH_HOME_LIMIT)
    assert scratch_home() == "/tmp"
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * (SCRATCH_HOME_LIMIT - 1))
    assert len(scratch_home()) == SCRATCH_HOME_LIMIT


@pytest.mark.parametrize(
    "name",
    ["NUL", "nul.txt", "Con", "aux.tar.gz", "COM1", "com9.onnx", "LPT¹", "lpt3 .bin", "PRN. ", "conin$", "CONOUT$.x"],
)
def test_names_that_open_a_device_on_windows(name: str) -> None:
    assert is_reserved_windows_name(name)


@pytest.mark.parametrize("name", ["null", "console", "com10", "COM", "auxiliary.bin", "model.nul", "xCON", "", "lpt"])
def test_names_that_only_look_like_devices(name: str) -> None:
    assert not is_reserved_windows_name(name)


def test_folders_and_pipes_are_no_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("é", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="not a regular file"):
            require_regular_file(tmp_path / name)
    assert read_text(tmp_path / "link") == "é"
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        read_text(tmp_path / "file")


def test_a_failed_write_on_a_full_disk_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [100]
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), require_disk_space(tmp_path, 101):
        pytest.fail("the block must not run")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), require_disk_space(tmp_path, 100):
        free[0] = 0
        raise RuntimeError("Error writing: System error.")
    free[0] = 100
    with pytest.raises(RuntimeError, match="unsupported format"), require_disk_space(tmp_path, 100):
        raise RuntimeError("unsupported format")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package, with the frontend inside it, and an empty current folder."""
    package = tmp_path / "site-packages" / "backend"
    (package / "frontend").mkdir(parents=True)
    (tmp_path / "current").mkdir()
    monkeypatch.setattr(installation, "PACKAGE", package)
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return tmp_path


def test_a_checkout_keeps_its_configuration_beside_the_code() -> None:
    assert not installation.is_installed()
    assert installation.config_folder() == ROOT
    assert installation.program_file("frontend").is_dir()
    assert any(line.startswith("fastapi") for line in installation.base_requirements())


def test_an_installed_program_reads_the_current_folder_s_configuration_first(installed: Path) -> None:
    assert installation.is_installed()
    assert installation.config_folder() == installed / "share" / "touchstone"
    (installed / "current" / "config.yaml").write_text("device: cpu\n")
    assert installation.config_folder() == installed / "current"
    assert installation.program_file("frontend").is_dir()


def test_an_installed_program_starts_in_a_folder_that_was_deleted(installed: Path) -> None:
    (installed / "current").rmdir()
    assert installation.config_folder() == installed / "share" / "touchstone"


@pytest.mark.parametrize(
    ("platform", "variable", "value", "folder"),
    [
        ("linux", "XDG_DATA_HOME", "", "~/.local/share/touchstone"),
        ("linux", "XDG_DATA_HOME", "/data", "/data/touchstone"),
        ("darwin", "XDG_DATA_HOME", "/data", "~/Library/Application Support/touchstone"),
        ("win32", "LOCALAPPDATA", "/c/local", "/c/local/touchstone"),
        ("win32", "LOCALAPPDATA", "", "~/AppData/Local/touchstone"),
    ],
)
def test_each_platform_has_its_own_folder_for_data(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, value: str, folder: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, value)
    assert installation.user_data_dir() == Path(folder).expanduser()


@FEW
@given(st.integers(0, SEEDS - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_variations_have_seeds_of_their_own_that_stay_valid(seed: int, first: int, second: int) -> None:
    offsets = offset_seed(seed, first), offset_seed(seed, second)
    assert all(0 <= offset < SEEDS for offset in offsets)
    assert (offsets[0] == offsets[1]) == (first == second)


def test_the_seed_after_the_last_one_is_the_first() -> None:
    assert offset_seed(SEEDS - 1, 1) == 0


def test_messages_become_rarer_with_more_sequences_up_to_a_limit() -> None:
    intervals = [flush_interval_s(count) for count in range(1, 100)]
    assert intervals == sorted(intervals) and intervals[0] < intervals[9] and intervals[-1] == intervals[-2]


@pytest.mark.parametrize(("share", "numbers"), [(None, [0, 1, 2, 3]), ((1, 2), [1, 2]), ((3, 1), [3]), ((0, 0), [])])
def test_a_worker_makes_only_the_variations_of_its_share(share: tuple[int, int] | None, numbers: list[int]) -> None:
    request = RunRequest(None, "x", {"variations": 4}, 0, False, share=share)
    assert list(request.variations()) == numbers
