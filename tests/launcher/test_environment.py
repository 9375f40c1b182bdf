"""`.venv` is created once, again after an interruption, and is never incomplete; errors have a remedy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launcher.folder import LIMIT_S, Folder, alive, command_line, write_ballast

OFFLINE = "--index-url http://127.0.0.1:{port}/simple\nballast\n"


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_first_start_makes_the_environment_and_the_second_skips_pip(bare: Folder) -> None:
    first = bare.run("echo", stdin=b"in and out\n")
    assert (first.returncode, first.stdout) == (0, "in and out\n"), first.stderr
    assert "Creating" in first.stderr and "Installing the packages of requirements.txt" in first.stderr
    shutil.rmtree(bare.root / "wheels")  # from here on pip could not succeed
    second = bare.run("echo", stdin=b"again\n")
    assert (second.returncode, second.stdout, second.stderr) == (0, "again\n", "")


def test_launcher_killed_while_it_makes_the_environment(bare: Folder) -> None:
    running = bare.start("echo")
    wait_for(bare.root / ".venv/bin/python")
    running.process.kill()
    running.process.wait(LIMIT_S)
    assert json.loads(bare.stamp.read_text()) == {"state": "making"}
    again = bare.start("echo")
    again.expect("Another launcher is preparing")  # its helper lives on, and must not write into a new environment
    again.expect("an interrupted start")
    assert again.process.wait(LIMIT_S) == 0
    assert not (bare.root / ".venv.old").exists()


def test_terminated_while_it_makes_the_environment(bare: Folder) -> None:
    running = bare.start("echo")
    wait_for(bare.root / ".venv/bin/python")  # ensurepip runs now, in a child
    assert running.end(signal.SIGTERM) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 1  # a killed grandchild goes when the kernel comes to it; ensurepip works for longer
    while still_at_work(bare.root) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert still_at_work(bare.root) == []


def still_at_work(root: Path) -> list[str]:
    """Command lines of the processes that still work in the folder."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()) and alive(int(process.name)):
            lines.append(command_line(int(process.name)))
    return [line for line in lines if str(root) in line]


def test_half_installed_packages_are_not_trusted(ready: Folder) -> None:
    ready.stamp.write_text('{"state": "mak')  # torn, which counts as unfinished
    (module,) = ready.root.glob(".venv/lib/*/site-packages/ballast.py")
    module.write_text("WEIGHT = ''")
    done = ready.run("echo")
    assert done.returncode == 0, done.stderr
    assert "WEIGHT = '1.0'" in module.read_text()


def test_changed_requirements_are_installed_into_what_is_there(ready: Folder) -> None:
    write_ballast(ready.root / "wheels", "2.0")
    (ready.root / "requirements.txt").write_text("--no-index\n--find-links ./wheels\nballast>=2\n")
    mark = ready.root / ".venv/kept"
    mark.touch()
    done = ready.run("echo")
    assert done.returncode == 0, done.stderr
    assert mark.exists() and list(ready.root.glob(".venv/lib/*/site-packages/ballast-2.0.dist-info"))


def test_the_versions_of_constraints_txt_are_installed_unless_the_index_lacks_one(ready: Folder) -> None:
    write_ballast(ready.root / "wheels", "2.0")
    write_ballast(ready.root / "wheels", "3.0")
    constraints = ready.root / "constraints.txt"
    constraints.write_text("ballast==2.0\n")
    done = ready.run("echo")
    assert done.returncode == 0, done.stderr
    assert list(ready.root.glob(".venv/lib/*/site-packages/ballast-2.0.dist-info"))
    constraints.write_text("ballast==9\n")
    (ready.root / "requirements.txt").write_text("--no-index\n--find-links ./wheels\nballast>2\n")
    done = ready.run("echo")
    assert done.returncode == 0, done.stderr
    assert "lacks a version of constraints.txt" in done.stderr
    assert list(ready.root.glob(".venv/lib/*/site-packages/ballast-3.0.dist-info"))


def test_offline_update_keeps_the_environment_for_the_older_requirements(ready: Folder, dead_port: int) -> None:
    requirements = ready.root / "requirements.txt"
    older = requirements.read_text()
    requirements.write_text(OFFLINE.format(port=dead_port).replace("ballast", "anchor"))
    assert ready.run("echo", env={"PIP_RETRIES": "1"}).returncode == 1
    requirements.write_text(older)
    done = ready.run("echo")
    assert (done.returncode, done.stderr) == (0, "")


def test_two_at_once_in_a_fresh_folder(bare: Folder) -> None:
    both = [bare.start("echo"), bare.start("echo")]
    assert [running.process.wait(LIMIT_S) for running in both] == [0, 0]
    for running in both:
        with pytest.raises(AssertionError):
            running.expect("(nobody says this: read to the end)")
    said = [line for running in both for line in running.lines]
    assert sum("Installing the packages" in line for line in said) == 1, said


def test_own_environment_of_the_user_is_completed_and_kept(bare: Folder) -> None:
    subprocess.run([sys.executable, "-m", "venv", bare.root / ".venv"], check=True)
    mark = bare.root / ".venv/kept"
    mark.touch()
    assert bare.run("echo").returncode == 0
    assert mark.exists()


def test_test_verb_has_an_environment_of_its_own(bare: Folder) -> None:
    (bare.root / "tests").mkdir()
    shutil.copy(bare.root / "requirements.txt", bare.root / "tests/requirements.txt")
    text = (bare.root / "requirements.txt").read_text().replace("./wheels", "../wheels")
    (bare.root / "tests/requirements.txt").write_text(text)
    done = bare.run("test", "unit")
    assert done.returncode == 0, done.stderr
    assert bare.notes[-1]["prefix"] == str(bare.root / ".venv-test")
    assert bare.notes[-1]["arguments"] == ["test", "unit"]
    assert not (bare.root / ".venv").exists()
