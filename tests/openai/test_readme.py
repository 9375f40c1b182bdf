"""The examples of docs/openai.md work; only the address is replaced."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.service import ROOT, Server

PAGE = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")


def at(server: Server, text: str) -> str:
    """Return the example with the address of this server."""
    assert "localhost:8000/v1" in text
    return text.replace("http://localhost:8000", server.url).replace("localhost:8000", server.url)


def test_the_curl_example(v1: Server) -> None:
    (command,) = re.findall(r"^\$ (curl [^\n]*/v1/(?:[^\n]*\\\n)*[^\n]*)$", PAGE, re.MULTILINE)
    told = subprocess.run(["bash", "-c", at(v1, command)], capture_output=True, text=True, check=True, timeout=120)
    answer = json.loads(told.stdout)
    assert answer["choices"][0]["message"]["content"] and answer["receipt"]["used"] == "cpu"


def test_the_python_example(v1: Server) -> None:
    (program,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    told = subprocess.run(
        [sys.executable, "-c", at(v1, program)], capture_output=True, text=True, check=True, timeout=120
    )
    text, _, last = told.stdout.rstrip("\n").rpartition("\n")
    assert text and last == "ran on cpu"
