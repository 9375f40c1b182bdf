"""`update`: a newer version by git or from a zip file, errors, and the way back."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.launcher.folder import Folder, write_ballast

SETTINGS = """
import types
from pathlib import Path
def load_settings(flags):
    return types.SimpleNamespace(data_dir=Path(__file__).parents[3] / "data")
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def origin(ready: Folder, tmp_path: Path) -> Path:
    """The repository that the checkout in `ready` follows; a clone of it, in which the next version is made."""
    root = ready.root
    (root / "backend/common/config").mkdir()
    (root / "backend/common/config/settings.py").write_text(SETTINGS)
    (root / "config.yaml").write_text("device: auto\n")
    (root / ".gitignore").write_text(
        "/.venv*\n/.previous\n/.update.lock\n/data\n/plan.json\n/notes.jsonl\n__pycache__/\n"
    )
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    git(tmp_path, "clone", "--quiet", "--bare", str(root), "origin.git")
    git(root, "remote", "add", "origin", str(tmp_path / "origin.git"))
    git(root, "fetch", "--quiet", "origin")
    git(root, "branch", "--quiet", "--set-upstream-to=origin/main")
    git(tmp_path, "clone", "--quiet", str(tmp_path / "origin.git"), "next")
    (root / "data").mkdir()
    (root / "data/mine").write_text("kept")
    (root / "data/proofs.json").write_text("{}")
    with contextlib.closing(sqlite3.connect(root / "data/jobs.sqlite3")) as history:
        history.executescript("create table jobs (id); insert into jobs values (1); pragma user_version = 1;")
    return tmp_path / "next"


def publish(origin: Path, requirement: str = "", program: str = "") -> None:
    """A next version, which may ask for other packages or be another program."""
    (origin / "backend/__init__.py").write_text('__version__ = "2.0"\n')
    if requirement:
        write_ballast(origin / "wheels", requirement)
        (origin / "requirements.txt").write_text(f"--no-index\n--find-links ./wheels\nballast=={requirement}\n")
    if program:
        (origin / "backend/__main__.py").write_text(program)
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--message", "second")
    git(origin, "push", "--quiet")


def packages(folder: Folder) -> list[str]:
    return sorted(path.name for path in folder.root.glob(".venv/lib/*/site-packages/ballast-*"))


def tables(folder: Folder) -> int:
    with contextlib.closing(sqlite3.connect(folder.root / "data/jobs.sqlite3")) as history:
        return int(history.execute("pragma user_version").fetchone()[0])


def test_to_a_newer_version_with_other_packages_and_back_without_network(ready: Folder, origin: Path) -> None:
    publish(origin, requirement="2.0")
    before = git(ready.root, "rev-parse", "HEAD")
    checked = ready.run("update", "--check")
    assert checked.returncode == 0 and "A newer version exists: 2.0 (1 commit(s) on origin/main)." in checked.stderr
    ready.plan(status={"url": "http://127.0.0.1:9"})
    done = ready.run("update")
    assert done.returncode == 0, done.stderr
    assert "Updated. Ready: cpu. Models, jobs and settings are unchanged." in done.stderr
    assert git(ready.root, "rev-parse", "HEAD") != before and packages(ready) == ["ballast-2.0.dist-info"]
    assert (ready.root / "data/mine").read_text() == "kept" and not (ready.root / "data/proofs.json").exists()
    assert [call[0] for call in ready.calls()] == ["devices", "status", "stop", "devices", "start"]
    with contextlib.closing(sqlite3.connect(ready.root / "data/jobs.sqlite3")) as history:
        history.executescript("pragma user_version = 2;")  # as the newer version would at its first start
    shutil.rmtree(ready.root / "wheels")
    back = ready.run("update", "--back")
    assert back.returncode == 0, back.stderr
    assert "The earlier version is back. Ready: cpu." in back.stderr
    assert git(ready.root, "rev-parse", "HEAD") == before and packages(ready) == ["ballast-1.0.dist-info"]
    assert tables(ready) == 1 and (ready.root / "data/jobs.sqlite3.newer").exists()
    again = ready.run("update", "--back")
    assert again.returncode == 1 and "No earlier version" in again.stderr


def test_a_version_that_does_not_come_up_is_left_again(ready: Folder, origin: Path) -> None:
    publish(origin, program="raise SystemExit('a mistake in the newer version')\n")
    before = git(ready.root, "rev-parse", "HEAD")
    done = ready.run("update")
    assert done.returncode == 1
    assert "a mistake in the newer version" in done.stderr and "does not start here" in done.stderr
    assert git(ready.root, "rev-parse", "HEAD") == before and ready.run("echo").returncode == 0


def test_a_device_that_is_lost_is_named(ready: Folder, origin: Path) -> None:
    ready.plan(devices={"devices": [{"id": "cpu", "state": "ready"}, {"id": "cuda:0", "state": "ready"}]})
    publish(origin, program="import json\nprint(json.dumps({'devices': [{'id': 'cpu', 'state': 'ready'}]}))\n")
    done = ready.run("update")
    assert done.returncode == 0, done.stderr
    assert "No longer ready: cuda:0." in done.stderr and "`./launch_wsl.sh update --back` goes back" in done.stderr


def test_nothing_newer(ready: Folder, origin: Path) -> None:
    done = ready.run("update")
    assert (done.returncode, done.stderr) == (0, "touchstone: Touchstone is up to date.\n")
    assert not (ready.root / ".previous").exists()


def test_a_file_of_the_user_that_changed_on_both_sides(ready: Folder, origin: Path) -> None:
    (origin / "config.yaml").write_text("device: cpu\n")
    publish(origin)
    (ready.root / "config.yaml").write_text("device: gpu\n")
    done = ready.run("update")
    assert done.returncode == 1 and "(config.yaml)" in done.stderr and "git stash" in done.stderr
    assert (ready.root / "config.yaml").read_text() == "device: gpu\n"


def test_what_the_user_changed_alone_stays(ready: Folder, origin: Path) -> None:
    publish(origin)
    (ready.root / "config.yaml").write_text("device: gpu\n")
    for words in (("update",), ("update", "--back")):
        assert ready.run(*words).returncode == 0
        assert (ready.root / "config.yaml").read_text() == "device: gpu\n"


def test_commits_of_the_users_own(ready: Folder, origin: Path) -> None:
    publish(origin)
    (ready.root / "mine").touch()
    git(ready.root, "add", "mine")
    git(ready.root, "commit", "--quiet", "--message", "mine")
    done = ready.run("update")
    assert done.returncode == 1 and "has 1 commit(s) that origin/main lacks" in done.stderr


def test_a_branch_that_follows_none_and_a_place_that_does_not_answer(ready: Folder, origin: Path) -> None:
    (origin.parent / "origin.git").rename(origin.parent / "gone.git")
    done = ready.run("update")
    assert done.returncode == 1 and "git could not fetch the newer version: fatal: " in done.stderr
    git(ready.root, "branch", "--quiet", "--unset-upstream")
    done = ready.run("update")
    assert done.returncode == 1 and "git branch --set-upstream-to=origin/main" in done.stderr


def zipped(origin: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(origin.rglob("*")):
            if path.is_file() and ".git" not in path.parts:
                archive.write(path, f"touchstone-2.0/{path.relative_to(origin)}")
        archive.writestr("touchstone-2.0/../outside", "out of the folder")
    return file


def test_from_a_zip_file_and_back(ready: Folder, origin: Path, tmp_path: Path) -> None:
    (origin / "config.yaml").write_text("device: cpu\n")
    publish(origin)
    shutil.rmtree(ready.root / ".git")
    (ready.root / "config.yaml").write_text("device: gpu\n")
    file = zipped(origin, tmp_path / "newer.zip")
    done = ready.run("update", str(file))
    assert done.returncode == 0, done.stderr
    assert "Installing 2.0 in newer.zip" in done.stderr and "config.yaml.new" in done.stderr
    assert '"2.0"' in (ready.root / "backend/__init__.py").read_text()
    assert (ready.root / "config.yaml").read_text() == "device: gpu\n"
    assert (ready.root / "config.yaml.new").read_text() == "device: cpu\n"
    assert not (ready.root / "outside").exists() and not (ready.root.parent / "outside").exists()
    assert ready.run("update", "--back").returncode == 0
    assert '"2.0"' not in (ready.root / "backend/__init__.py").read_text()
    assert (ready.root / "data/mine").read_text() == "kept"


@pytest.mark.parametrize("content", ["not a zip file", None])
def test_a_file_that_is_no_touchstone(ready: Folder, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "other.zip"
    if content:
        file.write_text(content)
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme", "something else")
    done = ready.run("update", str(file))
    assert done.returncode == 1 and "is not a zip file of Touchstone" in done.stderr
    assert json.loads((ready.root / ".venv/touchstone.json").read_text())["state"] == "ready"


def test_a_copy_without_version_control_names_the_zip_file(ready: Folder) -> None:
    done = ready.run("update")
    assert done.returncode == 1 and "update FILE.zip" in done.stderr
