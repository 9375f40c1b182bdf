"""Fixtures: folders with the real launcher and a fake program, so that every failure can be simulated."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.folder import Folder, write_ballast

REPOSITORY = Path(__file__).resolve().parents[2]


def lay(root: Path) -> Folder:
    (root / "backend").mkdir(parents=True)
    shutil.copy2(REPOSITORY / "launch_wsl.sh", root)
    for name in ("__init__.py", "cli/__init__.py", "cli/verbs.py"):
        (root / "backend" / name).parent.mkdir(exist_ok=True)
        shutil.copy2(REPOSITORY / "backend" / name, root / "backend" / name)
    for name in ("cli/launcher", "common"):
        unneeded = shutil.ignore_patterns("__py*", "config")
        shutil.copytree(REPOSITORY / "backend" / name, root / "backend" / name, ignore=unneeded)
    shutil.copy2(REPOSITORY / "tests/launcher/standin.py", root / "backend/__main__.py")
    write_ballast(root / "wheels", "1.0")
    (root / "requirements.txt").write_text("--no-index\n--find-links ./wheels\nballast\n")
    folder = Folder(root)
    folder.plan()
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Folder]:
    """As cloned: no environment yet."""
    folder = lay(tmp_path / "a bare földer")
    yield folder
    folder.end_all()


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = lay(tmp_path_factory.mktemp("prepared") / "first")
    done = folder.run("echo")
    assert done.returncode == 0, done.stderr
    folder.notes_file.unlink()
    return folder


@pytest.fixture
def ready(_prepared: Folder, tmp_path: Path) -> Iterator[Folder]:
    """A copy of a folder that has started before; that the copy works is part of what is tested."""
    folder = Folder(shutil.copytree(_prepared.root, tmp_path / "a réady folder", symlinks=True))
    yield folder
    folder.end_all()


@pytest.fixture
def driver(ready: Folder) -> list[str]:
    """Runs the start flow with a limit of its own: `[*driver, LIMIT_S]`."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from backend.cli.launcher.console import explain\n"
        "from backend.cli.launcher.start import start\n"
        "from backend.common.errors import TouchstoneError\n"
        "try: sys.exit(start(Path(sys.argv[2]), ['--no-browser'], float(sys.argv[3])))\n"
        "except TouchstoneError as error: explain(error); sys.exit(9)\n"
    )
    return [sys.executable, "-I", "-c", code, str(ready.root), str(ready.root / ".venv/bin/python")]


@pytest.fixture(scope="session")
def namespaces() -> list[str]:
    """The command that enters a private mount namespace, or a skip with the reason."""
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    pytest.skip("this machine gives no private mount namespace (needs root or user namespaces)")
