"""The page opens in the user's browser: on Linux the desktop's, under WSL that of Windows."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.launcher.folder import LIMIT_S, Folder

WSL2 = "6.6.87.2-microsoft-standard-WSL2\n"


def fake(folder: Path, name: str) -> Path:
    """A program of that name which notes its arguments."""
    folder.mkdir(exist_ok=True)
    notes = folder / f"{name}.notes"
    (folder / name).write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >'{notes}.new'\nmv '{notes}.new' '{notes}'\n")
    (folder / name).chmod(0o755)
    return notes


def read(notes: Path) -> str:
    deadline = time.monotonic() + LIMIT_S
    while not notes.exists():
        assert time.monotonic() < deadline, f"{notes.stem} was never called"
        time.sleep(0.02)
    return notes.read_text().strip()


def environment(tmp_path: Path, **changes: str) -> dict[str, str]:
    return {"PATH": f"{tmp_path / 'fake'}:{os.environ['PATH']}", "DISPLAY": "", "WAYLAND_DISPLAY": "", **changes}


def test_desktop_browser(ready: Folder, tmp_path: Path) -> None:
    notes = fake(tmp_path / "fake", "xdg-open")
    running = ready.start("--port", "0", env=environment(tmp_path, DISPLAY=":7"))
    address = running.expect("Touchstone is ready").split()[-1]
    running.expect("The page opens in your browser")
    assert read(notes) == address
    assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("flags", "display"), [((), ""), (("--no-browser",), ":7")])
def test_no_browser_without_a_display_or_when_told_not_to(
    ready: Folder, tmp_path: Path, flags: tuple[str, ...], display: str
) -> None:
    notes = fake(tmp_path / "fake", "xdg-open")
    running = ready.start("--port", "0", *flags, env=environment(tmp_path, DISPLAY=display))
    running.expect("Touchstone is ready")
    if not flags:
        running.expect("open the address above")
    assert running.end(signal.SIGTERM) == 0
    assert not notes.exists()


def test_wsl_opens_the_browser_of_windows(ready: Folder, tmp_path: Path, namespaces: list[str]) -> None:
    notes = fake(tmp_path / "fake", "powershell.exe")
    release = tmp_path / "release"
    release.write_text(WSL2)
    inside = f'mount --bind "{release}" /proc/sys/kernel/osrelease && exec "$0" --port 0'
    command = [*namespaces, "bash", "-c", inside, str(ready.root / "launch_wsl.sh")]
    running = ready.start(command=command, env=environment(tmp_path))
    address = running.expect("Touchstone is ready").split()[-1]
    assert read(notes).endswith(f"Start-Process '{address.replace('127.0.0.1', 'localhost')}'")
    assert running.end(signal.SIGTERM) == 0
