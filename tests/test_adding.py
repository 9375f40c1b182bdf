"""docs/adding.md walked through: its backend and its engine are put into a copy of the code, and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service import ROOT

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code with the files of the page; what is large and unchanged is linked."""
    root = tmp_path_factory.mktemp("adding")
    shutil.copytree(
        ROOT / "backend",
        root / "backend",
        copy_function=os.link,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("config.yaml", "requirements.txt"):
        shutil.copy(ROOT / name, root)
    for name, text in re.findall(r"```python (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (root / name).write_text(text, encoding="utf-8")
    return root


def verb(root: Path, *words: str) -> str:
    """What it prints; its exit code is 0."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    done = subprocess.run(
        [sys.executable, "-m", "backend", *words],
        cwd=root,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_both_files() -> None:
    names = re.findall(r"```python (\S+)\n", PAGE)
    assert names == ["backend/devices/onnx_example.py", "backend/engines/backwards.py"]


def test_the_backend_is_listed_proved_and_has_its_alias(copy: Path) -> None:
    said = verb(copy, "devices")
    ready = said.partition("Not available")[0]
    assert "  onnx-example: " in ready and "  cpu: " in ready


def test_the_engine_runs_a_model(copy: Path) -> None:
    (copy / "mine.backwards").write_text("backwards\n")
    verb(copy, "models", "add", "mine.backwards")
    assert verb(copy, "generate", "--model", "mine", "--device", "cpu", "stressed").strip().startswith("desserts")
