"""Help: fast, without the packages, and with hints for verbs of other tools."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys

import pytest

from backend.cli.main import main
from backend.cli.verbs import FOLDER, verb_summaries
from tests.service import ROOT

HELP_EXTRA_S = 0.3


def test_each_verbs_line_is_the_first_of_its_docstring() -> None:
    for verb, summary in verb_summaries().items():
        docstring = ast.get_docstring(ast.parse((FOLDER / f"{verb}.py").read_text())) or ""
        assert summary == docstring.splitlines()[0] and summary, verb


def help_s(*words: str) -> float:
    """Seconds of processor time that `--help` takes: other tests may run at the same time."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "backend", *words, "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_no_help_takes_longer_than_that_of_token() -> None:
    limit_s = statistics.median(help_s("token") for _ in range(3)) + HELP_EXTRA_S
    for words in [(), *((verb,) for verb in verb_summaries())]:
        # Repeated only where it was slower: another program may have disturbed it.
        assert help_s(*words) <= limit_s or statistics.median(help_s(*words) for _ in range(3)) <= limit_s, words


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run llama3 tell me", "generate --model llama3 'tell me'"),
        ("run", "generate PROMPT"),
        ("list", "models"),
        ("ps", "status"),
        ("pull smollm2-135m-instruct", "models fetch smollm2-135m-instruct"),
        ("pull hf.co/owner/repo", "models add hf.co/owner/repo"),
        ("rm old", "models remove old"),
        ("show", "models"),
        ("create", "models add SOURCE"),
        ("severe", "serve"),
        ("xyzzy", "--help"),
    ],
)
def test_a_verb_of_another_tool_is_answered_with_the_command_here(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(line.split())
    assert ending.value.code == 2
    assert f"python -m backend {hint}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["devices", "music", "serve"])
def test_a_python_without_the_packages_is_named_in_one_line(verb: str) -> None:
    """-S leaves out site-packages, as the system's own Python would."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TOUCHSTONE_"))}
    command = [sys.executable, "-S", "-m", "backend", verb]
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("touchstone: this Python (") and ended.stderr.count("\n") == 1
    assert f"Start it with ./launch_wsl.sh {verb}" in ended.stderr
