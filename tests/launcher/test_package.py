"""The package that `pip install .` makes, in a fresh environment outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend import __version__
from backend.cli.verbs import verb_summaries
from tests.service import ROOT

pytestmark = pytest.mark.newcomer  # pip fetches setuptools
_UNPACKED = (".git", ".venv*", ".test-data", ".previous", "data", "build", "*.egg-info", "__pycache__", ".*_cache")


@dataclass
class Installed:
    """An environment with the package, an empty folder to start it in, and the variables to start it with."""

    environment: Path
    folder: Path
    variables: dict[str, str]

    def run(self, *words: str, program: str = "touchstone") -> subprocess.CompletedProcess[str]:
        command = [str(self.environment / "bin" / program), *words]
        return subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=120)

    def serve(self) -> tuple[subprocess.Popen[str], str]:
        """Start the server on a free port; return it with its address."""
        process = subprocess.Popen(
            [str(self.environment / "bin/touchstone"), "serve", "--port", "0"],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout
        with process.stdout:
            return process, process.stdout.readline().split()[-1]


@pytest.fixture(scope="module")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the package. Its dependencies are those of this environment, by a path file."""
    folder = tmp_path_factory.mktemp("package")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*_UNPACKED))
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(source)], check=True)
    shutil.rmtree(source)  # what is used from now on is the package alone
    packages = next(environment.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.fixture
def installed(_environment: Path, tmp_path: Path) -> Iterator[Installed]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOUCHSTONE_", "PYTHON"))}
    yield Installed(_environment, folder, {**kept, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "share")})


def test_the_console_script_lists_every_verb(installed: Installed) -> None:
    done = installed.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: touchstone ")
    for verb in verb_summaries():
        assert f"\n    {verb} " in done.stdout
    assert installed.run("--version").stdout == f"Touchstone {__version__}\n"


def test_the_devices_are_proved_by_the_packages_own_children(installed: Installed) -> None:
    done = installed.run("devices", "--json")
    assert done.returncode == 0, done.stderr
    assert [device["id"] for device in json.loads(done.stdout)["devices"] if device["state"] == "ready"] == ["cpu"]


@pytest.mark.parametrize("configured", [False, True], ids=["the user's data folder", "beside config.yaml"])
def test_the_server_starts_in_any_folder_and_serves_the_page(
    installed: Installed, tmp_path: Path, configured: bool
) -> None:
    if configured:
        (installed.folder / "config.yaml").write_text("device: cpu\n")
    process, url = installed.serve()
    try:
        for address in ("", "style.css", "docs", "api/health", "api/runtimes", "api/models"):
            with urllib.request.urlopen(url.rstrip("/") + "/" + address) as answer:
                assert answer.status == 200, address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    parent = installed.folder if configured else tmp_path / "share/touchstone"
    assert (parent / "data").is_dir()
    assert sorted(file.name for file in installed.folder.iterdir()) == (["config.yaml", "data"] if configured else [])


def test_the_server_starts_and_stops_in_the_background(installed: Installed) -> None:
    started = installed.run("start", "--port", "0")
    try:
        assert started.returncode == 0, started.stderr
        status = installed.run("status")
        assert status.returncode == 0, status.stdout
    finally:
        assert installed.run("stop").stdout == "Stopped.\n"
    hint = installed.run("status").stdout
    assert "`touchstone start`" in hint


def test_touchstone_is_another_name_of_backend(installed: Installed) -> None:
    code = (
        "import touchstone, backend, touchstone.manager as one, backend.manager as other\n"
        "from touchstone.manager import ModelManager\n"
        "assert touchstone is backend and one is other and one.__spec__.name == 'backend.manager'\n"
        "print(touchstone.__version__)"
    )
    done = installed.run("-c", code, program="python")
    assert (done.stdout, done.stderr) == (f"{__version__}\n", "")
    assert installed.run("-m", "touchstone", "--version", program="python").stdout == f"Touchstone {__version__}\n"
