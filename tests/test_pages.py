"""docs/ is true: parts made from the code equal it, links lead somewhere, commands are run or marked as not run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import PAGES, page
from tests.service import ROOT, Server

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_ELSEWHERE = {  # pages whose commands another test runs
    "openai.md": "tests/openai",
}
PYTHON = f"{shlex.quote(sys.executable)} -m backend"
_FENCE = re.compile(r"^```(console[^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_what_is_made_from_the_code_equals_it(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == page(name), "`python -m tests.pages` writes it anew"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_links_lead_somewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [target for target in targets if not (file.parent / target).exists()] == []


def commands(file: Path) -> list[tuple[str, str]]:
    """Each command of the page, with what its block says of it."""
    found = []
    for head, body in _FENCE.findall(file.read_text(encoding="utf-8")):
        joined = body.replace("\\\n", " ")
        found += [(head, line[2:]) for line in joined.splitlines() if line.startswith(("$ ", "> ", "# "))]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_every_command_is_run_or_marked(file: Path) -> None:
    """A block is run by the test below, or says after `console` that it is not, and why or where else."""
    if file.name in RUN_ELSEWHERE:
        assert (ROOT / RUN_ELSEWHERE[file.name]).is_dir()
        return
    for head, command in commands(file):
        assert head == "console" or head.startswith(("console not run", "console run by ")), (head, command)


def test_the_commands_do_what_they_say(server: Server, tmp_path: Path) -> None:
    """Those of all pages against one server; what the pages call port 8000 is its port."""
    ran = 0
    for file in FILES:
        for head, command in commands(file):
            if head != "console" or file.name in RUN_ELSEWHERE:
                continue
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
            ran += 1
            assert done.returncode in (0, 3) and done.stdout, f"{file.name}: {command}\n{done.stdout}{done.stderr}"
            if done.stdout.startswith("{"):
                told = json.loads(done.stdout)
                assert "remedy" not in told or told.get("status") == 409, f"{file.name}: {command}\n{done.stdout}"
    assert ran >= 12


def environment(server: Server) -> dict[str, str]:
    """The data folder of the server, so that verbs go through it."""
    return {**os.environ, "TOUCHSTONE_DATA_DIR": str(server.data_dir), "PYTHONPATH": str(ROOT)}
