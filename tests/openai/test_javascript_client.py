"""The official JavaScript client, end to end: `javascript/suite.mjs` with Node's test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MODEL
from tests.service import Server

SUITE = Path(__file__).with_name("javascript")
LIMIT_S = 240


@pytest.mark.javascript
def test_the_suite(v1: Server, tmp_path: Path) -> None:
    folder = shutil.copytree(SUITE, tmp_path / "suite")
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    run(install, folder)
    told = run(["node", "--test", "suite.mjs"], folder, BASE_URL=v1.url, MODEL=MODEL)
    assert "# fail 0" in told and "# pass 0" not in told, told


def run(command: list[str], folder: Path, **environ: str) -> str:
    """What the command says; it must succeed."""
    program = shutil.which(command[0])
    assert program, f"{command[0]} is missing"
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
