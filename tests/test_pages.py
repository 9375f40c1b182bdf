"""The docs are correct: generated parts match the code, links resolve, commands are run or marked.

An HTML comment on the line before a block of commands gives the reason why the test does not run it
(`<!-- not run: REASON -->`) or names the test that does (`<!-- run by tests/... -->`). Viewers of Markdown hide such
comments, so the blocks keep plain languages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pages import PAGES, page
from tests.service import ROOT, Server

FILES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_ELSEWHERE = {  # pages whose commands another test runs
    "openai.md": "tests/openai",
}
LANGUAGES = {"", "console", "json", "py", "python", "yaml"}
PYTHON = f"{shlex.quote(sys.executable)} -m backend"
_FENCE = re.compile(r"^(?:<!-- ([^\n]+) -->\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"not run: \S.*|run by tests/\S+|(?:file|add to): \S+")


class Block(NamedTuple):
    """A fenced block: the comment on the line before it (empty without one), its language and its text."""

    mark: str
    language: str
    text: str


def blocks(file: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(*parts) for parts in _FENCE.findall(file.read_text(encoding="utf-8"))]


def commands(block: Block) -> list[str]:
    """Return the commands of a block, each in one line and without its prompt."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line[2:] for line in lines if line.startswith(("$ ", "> ", "# "))]


@pytest.mark.parametrize("name", PAGES)
def test_what_is_made_from_the_code_equals_it(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == page(name), "run `python -m tests.pages` to regenerate it"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_links_lead_somewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text)
    files = [(file.parent / target if target else file, anchor) for target, anchor in targets]
    assert [str(path) for path, _ in files if not path.exists()] == []
    assert [(path.name, anchor) for path, anchor in files if anchor and anchor not in anchors(path)] == []


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, formed as GitHub forms them."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_contents_names_every_page() -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {file.name for file in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - set(re.findall(r"\]\(([^)#/]+)\)", contents)) == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_the_files_that_a_page_names_exist(file: Path) -> None:
    named = re.findall(r"`((?:backend|frontend|tests)/[\w./*-]+)`", file.read_text(encoding="utf-8"))
    placeholders = {"backend/devices/NAME.py", "backend/engines/NAME.py", "backend/runtimes/data/NAME.yaml"}
    assert [path for path in named if path not in placeholders and not list(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_every_command_is_run_or_marked(file: Path) -> None:
    """A block is run by the test below, or the comment before it gives the reason or the test that runs it."""
    text = file.read_text(encoding="utf-8")
    marked = [block for block in blocks(file) if _MARK.fullmatch(block.mark)]
    marks = re.findall(r"<!-- (?:not run|run by|file|add to)\b", text)
    assert len(marked) == len(marks), "a mark is not before a block"
    for block in blocks(file):
        assert block.language in LANGUAGES, f"{file.name}: ```{block.language}"
        named = re.search(r"\btests/[\w./-]*\w", block.mark)
        assert named is None or (ROOT / named[0]).exists(), block.mark
    if file.name in RUN_ELSEWHERE:
        assert (ROOT / RUN_ELSEWHERE[file.name]).is_dir()


def is_run_here(file: Path, block: Block) -> bool:
    """Return whether the test below runs the commands of this block."""
    marked = _MARK.fullmatch(block.mark) is not None
    return block.language == "console" and not marked and file.name not in RUN_ELSEWHERE


def test_the_commands_do_what_they_say(server: Server, tmp_path: Path) -> None:
    """Run the commands of all pages against one server; the port 8000 of the pages becomes the server's port."""
    shown = [
        (file, command)
        for file in FILES
        for block in blocks(file)
        if is_run_here(file, block)
        for command in commands(block)
    ]
    assert len(shown) >= 12
    for command, file in {command: file for file, command in reversed(shown)}.items():  # what two pages show runs once
        words = command.replace("http://localhost:8000", server.url).replace("localhost:8000", server.url)
        words = re.sub(r"^(\./launch_wsl\.sh|python -m backend)(?= |$)", PYTHON, words)
        done = subprocess.run(
            ["bash", "-c", words],
            cwd=tmp_path,
            env=environment(server),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (0, 3) and done.stdout, f"{file.name}: {command}\n{done.stdout}{done.stderr}"
        if done.stdout.startswith("{"):
            reply = json.loads(done.stdout)
            assert "remedy" not in reply or reply.get("status") == 409, f"{file.name}: {command}\n{done.stdout}"


def environment(server: Server) -> dict[str, str]:
    """Return an environment with the server's data folder, so that commands find the running server."""
    return {**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir), "PYTHONPATH": str(ROOT)}
