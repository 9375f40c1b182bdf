"""The verb `test`: passed, failed and skipped tests, and the content of its stages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.cli.commands.test import failure_summary
from backend.cli.launcher import output_excerpt
from backend.cli.launcher.output_excerpt import first_failure
from backend.cli.launcher.run_record import Result, RunRecord
from backend.cli.launcher.stages import stages
from backend.cli.launcher.tools import Tool
from tests.launcher.folder import alive

ROOT = Path(__file__).resolve().parents[2]
LATER = Result("browser", "failed", 1, "pytest", ("a later one",))


def verb(*arguments: str, enter: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
    command = [*enter, sys.executable, "-m", "backend", "test", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def not_root() -> tuple[str, ...]:
    """The command after which the user is nobody in particular, or a skip with the reason."""
    if os.geteuid() != 0:
        return ()
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--user", "true"], capture_output=True).returncode:
        pytest.skip("root here, and no user namespace to leave that role in")
    return (unshare, "--user")


@pytest.fixture
def only_apt(tmp_path: Path) -> str:
    """A PATH with a package manager and nothing else; calling the manager would leave a mark."""
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\n: >'{tmp_path}/called'\n")
    (tmp_path / "apt-get").chmod(0o755)
    return str(tmp_path)


def test_missing_browser_is_a_skip_with_the_one_command(not_root: tuple[str, ...], only_apt: str) -> None:
    done = verb("browser", enter=not_root, PATH=only_apt)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chromium is missing; enable this stage with: sudo apt-get install -y" in done.stdout
    assert done.stdout.endswith("stages: 0 passed, 0 failed, 1 skipped\n")
    assert not Path(only_apt, "called").exists()


def test_missing_browser_fails_under_continuous_integration(not_root: tuple[str, ...], only_apt: str) -> None:
    done = verb("browser", "--json", enter=not_root, PATH=only_apt, CI="true")
    assert done.returncode == 1
    assert [stage["result"] for stage in json.loads(done.stdout)["stages"]] == ["failed"]


def test_root_on_debian_installs_what_is_missing(only_apt: str) -> None:
    """The stand-in for apt-get brings nothing, so the stage is still skipped; that it was called is what counts."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 and (
        unshare is None or subprocess.run([unshare, "--map-root-user", "true"], capture_output=True).returncode
    ):
        pytest.skip("not root here, and no user namespace to take that role in")
    enter = () if os.geteuid() == 0 else (str(unshare), "--map-root-user")
    done = verb("browser", enter=enter, PATH=only_apt)
    assert "Installing as root: apt-get install -y --no-install-recommends chromium" in done.stderr
    assert Path(only_apt, "called").exists()


def test_words_that_match_nothing_are_no_success() -> None:
    done = verb("browser", "-k", "no_test_has_this_name", PATH=os.environ["PATH"])
    assert done.returncode == 1
    assert "passed, 0 failed, 1 skipped" in done.stdout


PYTEST = """\
===== FAILURES =====
_________ test_one _________
    def test_one() -> None:
>       assert 1 == 2
E       assert 1 == 2
_________ test_two _________
E       assert 3 == 4
===== short test summary info =====
FAILED tests/test_it.py::test_one
""".splitlines()


def test_the_first_failure_is_failure_summary() -> None:
    assert first_failure(["begin", *PYTEST]) == PYTEST[1:5]
    assert first_failure([f"line {number}" for number in range(100)])[0] == "line 40"
    results = [Result("lint", "passed", 1, None), Result("unit", "failed", 1, "pytest", ("why",)), LATER]
    assert failure_summary(results) == "\nFirst failure, in the stage unit: pytest\nwhy\n"
    assert failure_summary(results[:1]) == ""


def test_what_a_command_writes_is_passed_on_and_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('one'); sys.stderr.write('two\\n'); sys.exit(3)"]
    with (tmp_path / "out").open("wb") as file:
        code, lines = output_excerpt.run(command, tmp_path, dict(os.environ), file.fileno(), 60)
    assert code == 3 and sorted(lines) == ["one", "two"]
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["one", "two"]


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, pytest.raises(subprocess.TimeoutExpired):
        output_excerpt.run([sys.executable, "-c", "input()" if os.name == "nt" else "import signal; signal.pause()"],
                    tmp_path, dict(os.environ), file.fileno(), 0.2)  # fmt: skip


def test_a_command_that_is_ended_keeps_its_output_and_leaves_no_process(tmp_path: Path) -> None:
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    log = tmp_path / "log"
    with (tmp_path / "out").open("wb") as file, pytest.raises(subprocess.TimeoutExpired):
        output_excerpt.run([sys.executable, "-c", code], tmp_path, dict(os.environ), file.fileno(), 1, log)
    assert not alive(int(log.read_text().splitlines()[0]))


SUITE = """
import pytest, time
@pytest.mark.parametrize("number", range(3))
def test_one(number):
    assert number != 1, "it is one"
"""
SAME_IDS = """
from _pytest.nodeid import NodeId
def pytest_collection_modifyitems(items):
    for item in items:
        item._id = NodeId(path="test_suite.py", names=("test_one",))
"""


def reported(folder: Path, conftest: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A small suite with one failure, under the runner's plugin."""
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.reporting", *flags, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_failure_is_named_when_it_happens_and_durations_are_kept(tmp_path: Path) -> None:
    durations = tmp_path / "durations.json"
    done = reported(tmp_path, "", f"--durations-file={durations}")
    assert done.returncode == 1
    named, details = done.stdout.index("FAILED test_suite.py::test_one[1] (call): "), done.stdout.index("= FAILURES =")
    assert named < details and "it is one" in done.stdout[named:details]
    assert json.loads(durations.read_text()).keys() == {f"test_suite.py::test_one[{number}]" for number in range(3)}


def test_tests_that_do_not_run_fail_the_stage(tmp_path: Path) -> None:
    done = reported(tmp_path, SAME_IDS, "-n", "1", "--dist=loadfile", "--deselect=nothing")
    assert "3 tests were collected, but 1 ended" in done.stdout and "test_suite.py::test_one (3 times)" in done.stdout
    assert done.returncode == 1


def test_a_run_is_resumed_after_its_last_passed_stage(tmp_path: Path) -> None:
    run = RunRecord.create(tmp_path, ["lint", "unit", "browser"], None)
    run.add(Result("lint", "passed", 1, None))
    run.add(Result("unit", "failed", 1, "pytest", ("why",)))
    resumed = RunRecord.latest(tmp_path)
    assert resumed and resumed.folder == run.folder
    assert (resumed.left, resumed.results) == (["unit", "browser"], [Result("lint", "passed", 1, None)])
    resumed.add(Result("unit", "passed", 1, None))
    assert resumed.left == ["browser"]


def test_two_runs_share_no_folder_and_old_ones_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    for number in range(8):
        monkeypatch.setattr("time.strftime", lambda form, number=number: f"2026010{number}-000000")
        folders.append(RunRecord.create(tmp_path, ["lint"], None))
    assert len({run.temporary("unit") for run in folders}) == 8
    assert sorted(file.name for file in (tmp_path / ".test-runs").iterdir()) == [run.folder.name for run in folders[3:]]


def test_resume_without_a_run_or_with_stages_is_wrong_usage() -> None:
    done = verb("unit", "--resume")
    assert done.returncode == 2 and "--resume" in done.stderr


def test_unknown_stage_is_wrong_usage() -> None:
    done = verb("unit", "brwser")
    assert done.returncode == 2
    assert "brwser" in done.stderr and "newcomer" in done.stderr


def test_every_test_belongs_to_a_stage() -> None:
    everything = collected()
    by_stage = {stage.name: selected(everything, stage.tests) for stage in stages(ROOT) if stage.tests}
    claimed: set[str] = set()
    for name, here in by_stage.items():
        assert here and not here & claimed, name
        claimed |= here
    assert claimed == {name for name, marks in everything.items() if "by_hand" not in marks}


COLLECT = """
import json, os, sys
import pytest
class Marks:
    def pytest_collection_finish(self, session):
        self.found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
marks = Marks()
pytest.main(["--collect-only", "-q", *sys.argv[1:]], [marks])
os.write(2, json.dumps(marks.found).encode())
"""


def collected() -> dict[str, set[str]]:
    """Return all tests with their marks. A file in a folder that names no mark of a stage counts as one test."""
    words = {word for stage in stages(ROOT) if "-m" in stage.tests for word in _words(stage.tests)} - {"not", "and"}
    marked = re.compile(rf"\bmark\.(?:{'|'.join(sorted(words))})\b")
    files = sorted((ROOT / "tests").rglob("*.py"))
    by_folder = {
        folder: [file for file in files if file.parent == folder] for folder in {file.parent for file in files}
    }
    folders = [folder for folder, own in by_folder.items() if any(marked.search(file.read_text()) for file in own)]
    command = [sys.executable, "-c", COLLECT, *(str(folder) for folder in folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    tests = {name: set(marks) for name, marks in json.loads(done.stderr.splitlines()[-1]).items()}
    others = [file for file in files if file.name.startswith("test_") and not {*file.parents} & {*folders}]
    return tests | {file.relative_to(ROOT).as_posix(): set() for file in others}


def _words(arguments: tuple[str, ...]) -> list[str]:
    return re.findall(r"[a-z_]+", arguments[arguments.index("-m") + 1])


def selected(everything: dict[str, set[str]], arguments: tuple[str, ...]) -> set[str]:
    """Those that pytest runs with a stage's arguments: folders or files, --ignore and -m."""
    words = list(arguments)
    marks = words[words.index("-m") + 1] if "-m" in words else "True"
    ignored = tuple(word.removeprefix("--ignore=") for word in words if word.startswith("--ignore="))
    places = tuple(word for word in words if word.startswith("tests"))
    return {
        name
        for name, has in everything.items()
        if name.startswith(places) and not name.startswith(ignored or "\0") and _holds(marks, has)
    }


def _holds(expression: str, marks: set[str]) -> bool:
    """pytest's `-m`, in which each word is a mark."""
    names = {word: word in marks for word in re.findall(r"[a-z_]+", expression)}
    return bool(eval(expression, {}, names))  # noqa: S307 (an expression of our own)


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import UTC\n\nNOW = UTC\n",
        "try:\n    pass\nexcept* ValueError:\n    pass\n",
        "type Number = int\n",
    ],
)
def test_compile_stage_refuses_what_python_3_10_lacks(tmp_path: Path, text: str) -> None:
    (stage,) = [stage for stage in stages(ROOT) if stage.name == "compile"]
    command = [word for word in stage.commands[0] if not word.startswith("backend/")]
    file = tmp_path / "newer.py"
    file.write_text(text)
    done = subprocess.run([*command, "--cache-dir", str(tmp_path), str(file)], capture_output=True, text=True)
    assert done.returncode != 0 and "newer.py" in done.stdout


def test_tools_are_found_beside_the_interpreter_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "pytest").touch(0o755)
    assert Tool(("pytest",), {}).find() == Path(sys.executable).parent / "pytest"
    assert Tool(("no-such-tool",), {}).find() is None
