"""docs/adding.md: its backend, engine, format, option and error are added to a copy of the code and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.file_server import FileServer
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
    for name, text in blocks("file"):
        (root / name).write_text(text, encoding="utf-8")
    for name, text in blocks("add to"):
        extended = (root / name).read_text(encoding="utf-8") + text
        (root / name).unlink()  # it is a link to the file of this repository
        (root / name).write_text(extended, encoding="utf-8")
    return root


def blocks(mark: str) -> list[tuple[str, str]]:
    """Return the files and texts of the page's code blocks with this mark."""
    return re.findall(rf"<!-- {mark}: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def run(root: Path, *words: str) -> str:
    """Run Python with these arguments in the copy; return what it prints. The exit code is 0."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def verb(root: Path, *words: str) -> str:
    """Run a verb of the command line in the copy; return what it prints."""
    return run(root, "-m", "backend", *words)


def test_the_page_has_all_files() -> None:
    assert [name for name, _ in blocks("file")] == ["backend/devices/onnx_example.py", "backend/engines/backwards.py"]
    assert [name for name, _ in blocks("add to")] == ["backend/tasks/options/text.py", "backend/common/errors.py"]


def test_the_backend_is_listed_proved_and_has_its_alias(copy: Path) -> None:
    ready = verb(copy, "devices").partition("Not available")[0]
    assert "  onnx-example: " in ready and "  cpu: " in ready


def test_the_engine_runs_a_model(copy: Path) -> None:
    (copy / "mine.bwd").write_text("backwards\n")
    verb(copy, "models", "add", "mine.bwd")
    assert verb(copy, "generate", "--model", "mine", "--device", "cpu", "stressed").strip().startswith("desserts")


def test_the_format_is_downloaded_from_a_web_address_and_listed(copy: Path) -> None:
    with FileServer(b"backwards, but not at all\n") as server:
        verb(copy, "models", "add", f"{server.origin}/other.bwd")
    (copy / "data" / "models" / "damaged.bwd").write_text("forwards\n")
    models = {model["id"]: model for model in json.loads(verb(copy, "models", "--json"))["models"]}
    other = models["other"]
    assert (other["state"], other["engines"], other["details"]["format"]) == ("ready", ["backwards"], "bwd")
    assert other["details"]["architecture"] == "mirror"
    assert (models["damaged"]["state"], models["damaged"]["reason"]) == (
        "broken",
        "The file does not start with the word backwards.",
    )
    assert verb(copy, "generate", "--model", "other", "--device", "cpu", "drawer").strip().startswith("reward")


def test_a_repository_with_the_format_is_recognised(copy: Path) -> None:
    code = (
        "from backend.child.download.hub_file_selection import choose\n"
        "print(choose({'README.md': 1, 'tiny.bwd': 9}, None, None, 'maker/model'))"
    )
    assert "kind='bwd', files=('tiny.bwd',)" in run(copy, "-c", code)


def test_the_option_is_validated_and_in_the_schema(copy: Path) -> None:
    code = (
        "from backend.tasks.options import options_schema, parse_options\n"
        "print(options_schema('text', 256)['properties']['uppercase']['type'],"
        " parse_options('text', {'uppercase': True})['uppercase'])"
    )
    assert run(copy, "-c", code).split() == ["boolean", "True"]


def test_the_error_is_rebuilt_from_its_code(copy: Path) -> None:
    code = (
        "from backend.common.errors import from_code\n"
        "problem = from_code('too_many_vowels', 'It has four.', 'Use fewer.').problem()\n"
        "print(problem.status, problem.title)"
    )
    assert run(copy, "-c", code).strip() == "422 Too many vowels"
