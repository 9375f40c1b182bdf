"""Remedies contain commands in the form in which the user started the program."""

from __future__ import annotations

import pytest

from backend.common import commands
from backend.common.commands import LAUNCHER_VARIABLE, announce, command
from backend.common.config.settings import load_settings


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("./launch_wsl.sh", "./launch_wsl.sh runtimes install cuda"),
        (".\\launch.cmd", ".\\launch.cmd runtimes install cuda"),
        ("touchstone", "touchstone runtimes install cuda"),
        ("", "python -m backend runtimes install cuda"),
        ("rm -rf /;", "python -m backend runtimes install cuda"),
    ],
)
def test_a_command_is_spelled_as_the_server_was_started(
    monkeypatch: pytest.MonkeyPatch, variable: str, line: str
) -> None:
    monkeypatch.setenv(LAUNCHER_VARIABLE, variable)
    assert command("runtimes install cuda") == line


def test_the_outermost_launcher_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCHER_VARIABLE, "")
    monkeypatch.delenv(LAUNCHER_VARIABLE)
    assert commands.program() == "python -m backend"
    announce("./launch_wsl.sh")
    announce("touchstone")
    assert commands.program() == "./launch_wsl.sh"


def test_the_variable_is_no_setting() -> None:
    load_settings({}, {LAUNCHER_VARIABLE: "touchstone"})
