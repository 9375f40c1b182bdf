"""Decisions of the launcher: options, the folder, WSL, stamps of environments, zip and git updates, records of runs."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.launcher import checkout_dir, history, options, wsl
from backend.cli.launcher.archive import Archive
from backend.cli.launcher.console import SetupFailed
from backend.cli.launcher.environment import INCOMPLETE, STAMP, Environment
from backend.cli.launcher.git import Checkout
from backend.cli.launcher.gpu_runtime import _describe_cards
from backend.cli.launcher.output_excerpt import SHOWN_LINES, first_failure
from backend.cli.launcher.run_record import Result, RunRecord
from backend.cli.launcher.server import reachable
from backend.cli.launcher.start import _shared_flags
from backend.cli.launcher.tools import Tool
from backend.cli.launcher.wsl import Wsl, address_notices, notices, windows_url
from backend.common.errors import Configuration

WORDS = st.lists(st.sampled_from(("--port", "8000", "--no-browser", "--host", "x", "--gpu=auto")), max_size=6)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(WORDS)
def test_options_of_the_server_keep_their_order(words: list[str]) -> None:
    parsed = options.parse(words)
    assert list(parsed.rest) == [word for word in words if word not in ("--no-browser", "--gpu=auto")]
    assert parsed.browser == ("--no-browser" not in words)
    assert parsed.gpu == ("auto" if "--gpu=auto" in words else None)


@pytest.mark.parametrize(
    ("words", "gpu"), [(["--gpu", "cuda"], "cuda"), (["--gpu=none"], "none"), (["--gpu=a", "--gpu", "b"], "b")]
)
def test_the_runtime_may_be_a_second_word(words: list[str], gpu: str) -> None:
    assert options.parse(words) == options.Options(True, gpu, None, ())


@pytest.mark.parametrize(("words", "model"), [(["--model", "a-3b"], "a-3b"), (["--model=none"], "none"), ([], None)])
def test_the_model_is_an_option_of_the_launcher(words: list[str], model: str | None) -> None:
    assert options.parse([*words, "--port", "0"]) == options.Options(True, None, model, ("--port", "0"))


@pytest.mark.parametrize("words", [["--model"], ["--model="], ["--model", "--port"]])
def test_a_model_without_a_value_is_refused(words: list[str]) -> None:
    with pytest.raises(Configuration, match="--model needs a value"):
        options.parse(words)


@pytest.mark.parametrize("words", [["--gpu"], ["--gpu="], ["--gpu", "--port"], ["--gpu", ""]])
def test_a_flag_without_its_value_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(Configuration, match="needs a value"):
        options.parse(words)


@pytest.mark.parametrize(
    ("rest", "shared"),
    [
        (["--port", "1", "--data-dir", "d"], ["--data-dir", "d"]),
        (["--config=c", "--port=1"], ["--config=c"]),
        (["--data-dir"], ["--data-dir", ""]),
        ([], []),
    ],
)
def test_only_flags_that_choose_the_models_reach_the_download(rest: list[str], shared: list[str]) -> None:
    assert _shared_flags(rest) == shared


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://0.0.0.0:8000/", "http://127.0.0.1:8000/"),
        ("http://[::]:8000/", "http://[::1]:8000/"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000/"),
    ],
)
def test_an_address_of_all_interfaces_is_shown_as_one_that_opens(url: str, expected: str) -> None:
    assert reachable(url) == expected


def test_a_folder_whose_name_ends_a_path_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / f"a{os.pathsep}b"
    folder.mkdir()
    with pytest.raises(SetupFailed, match="Python environments do not support"):
        checkout_dir.refuse_unusable(folder)


@pytest.mark.parametrize(("free", "refused"), [(999_999_999, True), (1_000_000_000, False)])
def test_a_disk_needs_a_gigabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, refused: bool) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: type("Usage", (), {"free": free}))
    if refused:
        with pytest.raises(SetupFailed, match="1000 MB needed"):
            checkout_dir.refuse_unusable(tmp_path)
    else:
        checkout_dir.refuse_unusable(tmp_path)


@pytest.mark.parametrize(("flag", "words"), [("ST_RDONLY", "not writable"), ("ST_NOEXEC", "noexec")])
def test_a_mount_without_writing_or_programs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, words: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _folder: type("Mount", (), {"f_flag": getattr(os, flag)}))
    with pytest.raises(SetupFailed, match=words):
        checkout_dir.refuse_unusable(tmp_path)


def test_a_folder_of_root_names_the_command_that_returns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    error = checkout_dir.unwritable(tmp_path)
    assert "it belongs to" in error.detail
    assert ("sudo chown" in error.remedy) == error.detail.endswith("root.")


MOUNTS = (
    "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
    "2 1 0:5 / /mnt/c rw - 9p C: rw\n"
    "3 1 0:6 / /mnt/c/inner rw - ext4 /dev/sdb rw\n"
    "4 1 0:7 / /mnt/my\\040disk rw - drvfs D: rw\n"
    "torn line\n"
)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/home/ada", False),
        ("/mnt/c/Users", True),
        ("/mnt/cd", False),
        ("/mnt/c/inner/x", False),
        ("/mnt/my disk/x", True),
    ],
)
def test_the_innermost_mount_shows_whether_a_folder_is_on_windows(tmp_path: Path, folder: str, expected: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert checkout_dir.on_windows_disk(Path(folder), mounts) is expected
    assert not checkout_dir.on_windows_disk(Path(folder), tmp_path / "absent")


URL = "http://127.0.0.1:8000/"
LOCAL = "http://localhost:8000/"


@pytest.mark.parametrize(
    ("system", "address"),
    [
        (Wsl(1), LOCAL),
        (Wsl(2), LOCAL),
        (Wsl(2, networking="mirrored", forwarding=False), LOCAL),
        (Wsl(2, networking="nat", forwarding=False), None),
        (Wsl(2, networking="none"), None),
    ],
)
def test_whether_windows_reaches_the_server(system: Wsl, address: str | None) -> None:
    assert windows_url(system, URL) == address
    lines = address_notices(system, URL, everywhere=False)
    assert lines == [f"On Windows: {address}"] if address else "cannot reach port 8000" in lines[0]


def test_outside_wsl_nothing_is_said_about_windows() -> None:
    assert address_notices(Wsl(), URL, everywhere=True) == []
    assert notices(Wsl()) == []


def test_a_server_on_all_addresses_is_reached_without_forwarding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsl, "_own_address", lambda: "172.20.1.2")
    (line,) = address_notices(Wsl(2, forwarding=False), "http://0.0.0.0:8000/", everywhere=True)
    assert "http://172.20.1.2:8000/" in line


def test_what_a_user_of_wsl_should_know_before_the_installation() -> None:
    assert "wsl --set-version Debian 2" in notices(Wsl(1, distribution="Debian"))[1]
    assert "no GPU" in notices(Wsl(2, card=False))[0]
    assert notices(Wsl(2, card=True)) == []


def environment(root: Path) -> Environment:
    (root / "requirements.txt").write_text("numpy\n")
    return Environment(root / ".venv", (root / "requirements.txt",))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "{}", '{"state": "ready"}', "\x00\xff"])
def test_a_torn_stamp_means_an_incomplete_environment(tmp_path: Path, content: str) -> None:
    made = environment(tmp_path)
    made.folder.mkdir()
    (made.folder / STAMP).write_text(content)
    assert made._stamp() == INCOMPLETE
    assert not made._is_current()


def test_an_environment_without_a_stamp_is_not_ours(tmp_path: Path) -> None:
    assert environment(tmp_path)._stamp() == {}


def test_changed_requirements_and_lost_packages_are_noticed(tmp_path: Path) -> None:
    made = environment(tmp_path)
    packages = made.folder / "lib" / "python3.12" / "site-packages"
    for name in ("numpy", "pip", "numpy-2.0.dist-info", "__pycache__", "~umpy", "touchstone.pth"):
        (packages / name).mkdir(parents=True)
    stamp = made._finished("3.12")
    assert stamp["packages"] == ["numpy"]
    assert made._missing(stamp) == []
    (packages / "numpy").rmdir()
    assert made._missing(stamp) == ["numpy"]
    (tmp_path / "requirements.txt").write_text("numpy\nhttpx\n")
    assert made._digest() != stamp["requirements"]


@pytest.mark.parametrize("kind", ["file", "other system"])
def test_what_the_launcher_must_not_remove_is_refused(tmp_path: Path, kind: str) -> None:
    made = environment(tmp_path)
    if kind == "file":
        made.folder.write_text("mine")
    else:
        (made.folder / "Scripts").mkdir(parents=True)
    with pytest.raises(SetupFailed):
        made.ensure()
    assert made.folder.exists()


def test_a_link_to_an_environment_elsewhere_is_removed_without_its_target(tmp_path: Path) -> None:
    made, target = environment(tmp_path), tmp_path / "elsewhere"
    target.mkdir()
    made.folder.symlink_to(target)
    made._discard()
    assert (made.folder.is_symlink(), target.exists()) == (False, True)


def zipped(file: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


TOP = "touchstone-9/"
NEW = {
    f"{TOP}backend/__init__.py": '__version__ = "9.1"\n',
    f"{TOP}backend/cli/launcher/__main__.py": "new\n",
    f"{TOP}config.yaml": "new: 1\n",
    f"{TOP}added.txt": "new\n",
    f"{TOP}../evil.txt": "evil\n",
    "outside.txt": "evil\n",
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """An unpacked copy of an older version with a changed configuration."""
    root = tmp_path / "root"
    (root / "backend").mkdir(parents=True)
    (root / "backend" / "old.py").write_text("old\n")
    (root / "config.yaml").write_text("mine: 1\n")
    return root


def texts(root: Path) -> dict[str, str]:
    return {
        file.relative_to(root).as_posix(): file.read_text()
        for file in sorted(root.rglob("*"))
        if file.is_file() and ".previous" not in file.parts
    }


def test_an_update_from_a_zip_file_replaces_the_code_and_keeps_the_configuration(copy: Path, tmp_path: Path) -> None:
    before = texts(copy)
    archive = Archive(copy, copy / ".previous", zipped(tmp_path / "new.zip", NEW))
    assert archive.newer() == "9.1 in new.zip"
    assert texts(copy) == before
    archive.switch()
    after = texts(copy)
    assert (after["config.yaml"], after["config.yaml.new"], after["added.txt"]) == ("mine: 1\n", "new: 1\n", "new\n")
    assert "backend/old.py" not in after
    assert not list(tmp_path.rglob("evil.txt")) and not list(tmp_path.rglob("outside.txt"))
    archive.back(archive.mark())
    assert texts(copy)["backend/old.py"] == "old\n"
    assert "backend/__init__.py" not in texts(copy)


def test_an_interrupted_exchange_can_be_undone(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts(copy)
    archive = Archive(copy, copy / ".previous", zipped(tmp_path / "new.zip", NEW))
    rename, count = Path.rename, [0]

    def break_off(file: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == 3:
            raise OSError("interrupted")
        return rename(file, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", break_off)
        with pytest.raises(OSError, match="interrupted"):
            archive.switch()
    Archive(copy, copy / ".previous", None).back({})
    assert before.items() <= texts(copy).items()


@pytest.mark.parametrize(
    "members",
    [
        None,
        {"readme.txt": "x"},
        {"a/backend/cli/launcher/__main__.py": "", "b/backend/cli/launcher/__main__.py": ""},
        {"a/backend/cli/launcher/__main__.py": ""},
    ],
)
def test_a_file_that_is_not_a_copy_is_refused(copy: Path, tmp_path: Path, members: dict[str, str] | None) -> None:
    file = tmp_path / "new.zip"
    if members is not None:
        zipped(file, members)
    with pytest.raises(SetupFailed, match="is not a zip file of Touchstone"):
        Archive(copy, copy / ".previous", file).newer()


class Git(Checkout):
    """A checkout whose git answers from a table: command → output or error."""

    def __init__(self, **answers: str) -> None:
        super().__init__(Path("/"))
        self.answers: dict[str, str] = {"rev_parse": "origin/main", "rev_list": "0\t2", "show": ""} | answers

    def _run(self, *words: str) -> tuple[str, str]:
        answer = self.answers.get(words[0].replace("-", "_"), "")
        return ("", answer[1:]) if answer.startswith("!") else (answer, "")


@pytest.mark.parametrize(
    ("answers", "newer"),
    [
        ({"rev_list": "0\t0"}, None),
        ({"rev_list": "3\t0"}, None),
        ({"show": "__version__ = '2.0'"}, "2.0 (2 commit(s) on origin/main)"),
        ({}, "the newest version (2 commit(s) on origin/main)"),
    ],
)
def test_a_checkout_is_newer_by_the_commits_of_its_upstream(answers: dict[str, str], newer: str | None) -> None:
    assert Git(**answers).newer() == newer


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"rev_parse": "!no upstream"}, "no upstream branch"),
        ({"fetch": "!could not resolve host"}, "could not resolve host"),
        ({"rev_list": "1\t2"}, "1 commit(s) that origin/main lacks"),
        ({"rev_list": "!bad object"}, "bad object"),
    ],
)
def test_a_checkout_that_cannot_be_updated_has_its_reason(answers: dict[str, str], words: str) -> None:
    with pytest.raises(SetupFailed) as caught:
        Git(**answers).newer()
    assert words in caught.value.detail
    assert caught.value.remedy


def test_conflicting_files_of_the_user_are_named() -> None:
    with pytest.raises(SetupFailed, match=r"config\.yaml, a\.py"):
        Git(merge="!would be overwritten", diff="config.yaml\na.py").switch()
    with pytest.raises(SetupFailed, match="abc: dirty"):
        Git(reset="!dirty").back({"commit": "abc"})


def test_the_first_telling_line_of_git_is_shown(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(SetupFailed, match="git failed: fatal: ") as caught:
        Checkout(tmp_path).mark()
    assert "git status" in caught.value.remedy


def table(folder: Path, version: int) -> None:
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(folder / history.NAME) as database:
        database.execute(f"PRAGMA user_version = {version}")
        database.execute("CREATE TABLE jobs (version)")
        database.execute("INSERT INTO jobs VALUES (?)", (version,))
    database.close()


def rows(file: Path) -> list[int]:
    database = sqlite3.connect(file)
    found = [row[0] for row in database.execute("SELECT version FROM jobs")]
    database.close()
    return found


def test_the_history_goes_back_only_if_its_tables_changed(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup.mkdir()
    history.copy(data, backup)
    assert not history.restore(data, backup)
    table(data, 1)
    history.copy(data, backup)
    assert not history.restore(data, backup)
    (data / history.NAME).unlink()
    table(data, 2)
    assert history.restore(data, backup)
    assert (rows(data / history.NAME), rows(data / f"{history.NAME}.newer")) == ([1], [2])


def test_the_excerpt_of_a_failure_is_the_first_one_and_its_end() -> None:
    long = [f"line {number}" for number in range(200)]
    lines = ["...", "=== FAILURES ===", "____ test_one ____", *long, "____ test_two ____", "two", "=== 2 failed ==="]
    shown = first_failure(lines)
    assert (shown[0], shown[1], shown[-1], len(shown)) == ("____ test_one ____", "...", "line 199", SHOWN_LINES)
    assert first_failure(long) == long[-SHOWN_LINES:]
    assert first_failure([]) == []


def test_a_run_is_resumed_with_the_stages_that_did_not_pass(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, ["a", "b", "c"], None)
    record.add(Result("a", "passed", 1.0, None))
    record.add(Result("b", "failed", 1.0, "why", ("line",)))
    again = RunRecord.latest(tmp_path)
    assert again and again.left == ["b", "c"]
    assert RunRecord.latest(tmp_path / "absent") is None


def test_a_run_that_still_runs_is_not_resumed(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, ["a"], None)
    state = json.loads((record.folder / "run.json").read_text())
    (record.folder / "run.json").write_text(json.dumps(state | {"pid": os.getppid()}))
    assert RunRecord.latest(tmp_path) is None


@pytest.mark.parametrize(
    ("managers", "root", "expected"),
    [
        (("dnf",), False, "sudo dnf install -y tool-dnf"),
        (("apt-get", "dnf"), True, "apt-get install -y --no-install-recommends tool-apt"),
        (("brew",), False, "brew install tool-brew"),
        (("pacman",), False, None),
        ((), True, None),
    ],
)
def test_the_command_for_a_missing_tool_is_that_of_this_system(
    monkeypatch: pytest.MonkeyPatch, managers: tuple[str, ...], root: bool, expected: str | None
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_options: name if name in managers else None)
    monkeypatch.setattr("backend.cli.launcher.tools._is_root", lambda: root)
    tool = Tool(("tool",), {"apt-get": "tool-apt", "dnf": "tool-dnf", "brew": "tool-brew"})
    assert tool.command() == expected
    assert tool.find() is None


def test_each_card_is_described_with_its_driver_and_working_devices() -> None:
    cards: list[dict[str, Any]] = [
        {"kind": "cpu", "name": "Ryzen"},
        {"kind": "gpu", "name": "A", "driver": "580.1", "driver_date": "2026-01", "devices": ["cuda:0", "vulkan:0"]},
        {"kind": "npu", "name": "B", "driver": None, "devices": []},
    ]
    devices = [{"id": "cuda:0", "state": "ready"}, {"id": "vulkan:0", "state": "broken"}]
    first, second = _describe_cards({"hardware": cards, "devices": devices})
    assert first == "Found A (driver 580.1 of 2026-01): cuda:0."
    assert second.startswith("Found B (no driver): no installed runtime")
    assert _describe_cards({}) == []


def test_lines_of_the_launcher_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.cli.launcher import console

    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    console.explain(SetupFailed("It broke.", "Repair it."))
    assert (out.getvalue(), err.getvalue()) == ("", "touchstone: It broke.\ntouchstone: Repair it.\n")
    assert not console.interactive()
