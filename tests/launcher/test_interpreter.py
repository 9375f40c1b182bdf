"""Which interpreters the launchers accept, by version and platform."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.cli.launcher import interpreter

PLATFORMS = {
    "linux": ("linux", "linux-x86_64", "x86_64"),
    "windows": ("win32", "win-amd64", "AMD64"),
    "windows-arm": ("win32", "win-arm64", "ARM64"),
    "windows-arm-emulating-x64": ("win32", "win-amd64", "ARM64"),
    "apple": ("darwin", "macosx-14.0-arm64", "arm64", "15.1"),
    "apple-universal": ("darwin", "macosx-10.13-universal2", "arm64", "14.0"),
    "apple-macos-13": ("darwin", "macosx-10.13-universal2", "arm64", "13.7"),
    "intel-mac": ("darwin", "macosx-10.13-universal2", "x86_64", "15.0"),
}
UNSUPPORTED = {("windows-arm", 11), ("intel-mac", 14), ("apple-macos-13", 14), *((name, 15) for name in PLATFORMS)}


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Facts of a simulated interpreter, to be changed."""
    made = SimpleNamespace(version_info=(3, 13, 0), platform="linux", maxsize=2**63 - 1)
    monkeypatch.setattr(interpreter, "sys", made)
    return made


@pytest.mark.parametrize("minor", range(11, 16))
@pytest.mark.parametrize("name", PLATFORMS)
def test_a_version_without_packages_is_refused_with_the_supported_range(
    monkeypatch: pytest.MonkeyPatch, facts: SimpleNamespace, name: str, minor: int
) -> None:
    facts.platform, tag, machine, *macos = PLATFORMS[name]
    facts.version_info = (3, minor, 1)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: tag)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "mac_ver", lambda: ((macos or [""])[0], ("", "", ""), ""))
    sentence, code = interpreter.find_fault(is_posix=False)
    if (name, minor) not in UNSUPPORTED:
        assert (sentence, code) == ("good", 0)
    else:
        assert code == 2
        assert sentence.startswith(f"Python 3.{minor}") and "is not supported: the packages exist for 3.1" in sentence


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version_info": (3, 10, 9)}, "old"),
        ({"version_info": (2, 7, 18)}, "old"),
        ({"maxsize": 2**31 - 1}, "32-bit"),
        ({"platform": "win32"}, "windows"),
    ],
)
def test_other_faults_are_one_word(facts: SimpleNamespace, change: dict[str, object], word: str) -> None:
    vars(facts).update(change)
    assert interpreter.find_fault(is_posix=True) == (word, 1)


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch, facts: SimpleNamespace) -> None:
    monkeypatch.setattr(interpreter, "MODULES", ("json", "a_module_that_is_not_there"))
    assert interpreter.find_fault(is_posix=True) == ("a_module_that_is_not_there", 1)


def test_this_interpreter_is_good() -> None:
    command = [sys.executable, "-I", str(Path(interpreter.__file__)), "posix"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "good\n"
