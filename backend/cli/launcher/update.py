"""`update`: to a newer version and back, with models, jobs and settings kept and every device proved again.

Before anything changes, the way back is put aside in `.previous`: where the code was, the environment if its packages
will change, and a copy of the history. A newer version that does not come up is left again at once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from backend.cli.launcher import history, subprocesses
from backend.cli.launcher.archive import Archive
from backend.cli.launcher.console import SetupFailed, say
from backend.cli.launcher.environment import Environment
from backend.cli.launcher.git import Checkout
from backend.cli.launcher.lock import held

ASIDE = ".previous"
DATA_DIR = "from backend.common.config.settings import load_settings; print(load_settings({}).data_dir)"


class Source(Protocol):
    """Where a newer version comes from."""

    def newer(self) -> str | None: ...
    def mark(self) -> dict[str, str]: ...
    def switch(self) -> None: ...
    def back(self, mark: dict[str, str]) -> None: ...


def update(root: Path, arguments: Sequence[str]) -> int:
    """The exit code. Raises SetupFailed."""
    parser = argparse.ArgumentParser(prog="update", description="Takes a newer version, or goes back to the last.")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.zip", help="for copies without version control")
    parser.add_argument("--check", action="store_true", help="only say whether there is a newer version")
    parser.add_argument("--back", action="store_true", help="go back to the version before the last update")
    args = parser.parse_args(arguments)
    with held(root / ".update.lock", lambda: say("Another update is at work; waiting until it has finished ...")):
        return _Update(root, args.file).run(args.check, args.back)


class _Update:
    def __init__(self, root: Path, file: Path | None) -> None:
        self._root, self._aside = root, root / ASIDE
        self._environment = Environment(root / ".venv", (root / "requirements.txt",))
        git = (root / ".git").exists() and file is None
        self._source: Source = Checkout(root) if git else Archive(root, self._aside, file)

    def run(self, check: bool, back: bool) -> int:
        if back:
            return self._go_back()
        newer = self._source.newer()
        if newer is None:
            say("There is no newer version.")
            return 0
        if check:
            say(f"There is a newer version: {newer}. `update` takes it, and `update --back` comes back.")
            return 0
        return self._take(newer)

    def _take(self, newer: str) -> int:
        before = self._ready()
        data = self._data()
        running = self._stop()
        self._put_aside(data)
        say(f"Taking {newer} ...")
        requirements = self._requirements()
        try:
            self._source.switch()
        except SetupFailed:
            self._restart(running)
            raise
        if self._requirements() != requirements and self._environment.folder.exists():
            self._environment.folder.rename(self._aside / "venv")  # whole, so that going back needs no network
        say("Every device is proved again ...")
        after = self._ready(by_launcher=True)
        if after is None:
            say("The newer version does not come up here; what it said stands above. Going back.")
            self._return(data)
            self._restart(running)
            return 1
        self._tell(before or [], after)
        self._restart(running)
        return 0

    def _go_back(self) -> int:
        if not (self._aside / "state.json").is_file():
            raise SetupFailed("There is no earlier version to go back to.", "`update` keeps one when it takes a newer.")
        data = self._data()
        running = self._stop()
        self._return(data)
        after = self._ready(by_launcher=True)
        say(f"Back at the earlier version; ready: {', '.join(after or []) or 'nothing'}.")
        self._restart(running)
        return 0 if after is not None else 1

    def _put_aside(self, data: Path | None) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)
        self._aside.mkdir()
        if data:
            history.copy(data, self._aside)
            (data / "proofs.json").unlink(missing_ok=True)
        (self._aside / "state.json").write_text(json.dumps(self._source.mark()), encoding="utf-8")

    def _return(self, data: Path | None) -> None:
        mark = json.loads((self._aside / "state.json").read_text(encoding="utf-8"))
        source: Source = Checkout(self._root) if mark["kind"] == "git" else Archive(self._root, self._aside, None)
        source.back(mark)
        if (self._aside / "venv").exists():
            shutil.rmtree(self._environment.folder, ignore_errors=True)
            (self._aside / "venv").rename(self._environment.folder)
        if data and history.restore(data, self._aside):
            say(f"The history is that of before the update; the newer one is kept as {data / history.NAME}.newer.")
        shutil.rmtree(self._aside)

    def _ready(self, by_launcher: bool = False) -> list[str] | None:
        """The devices that work, by new proofs; None where that could not be learnt.

        `by_launcher`: with the environment made or completed, by the launcher that lies there now.
        """
        if not by_launcher and not self._environment.python.exists():
            return None
        program = [sys.executable, "-I", str(self._root / "backend" / "cli" / "launcher")]
        said = _json(program if by_launcher else self._verb(), "devices", "--json")
        if not isinstance(said, dict):
            return None
        return [device["id"] for device in said.get("devices", []) if device.get("state") == "ready"]

    def _tell(self, before: list[str], after: list[str]) -> None:
        lost = [id_ for id_ in before if id_ not in after]
        say(f"Updated. Ready: {', '.join(after) or 'nothing'}. Models, jobs and settings are as they were.")
        if lost:
            say(f"Ready before and not any more: {', '.join(lost)}. `devices` says why; `update --back` goes back.")

    def _stop(self) -> bool:
        """Ends the server of the data folder; whether one ran."""
        if not self._environment.python.exists() or not _json(self._verb(), "status", "--json"):
            return False
        say("Stopping the running server ...")
        if subprocesses.run([*self._verb(), "stop"]):
            raise SetupFailed("The running server did not end.", "Stop it yourself, and start this again.")
        return True

    def _restart(self, running: bool) -> None:
        if running and subprocesses.run([*self._verb(), "start"]):
            say("The server did not start again, as said above; `start` tries it once more.")

    def _data(self) -> Path | None:
        """The data folder that the settings name."""
        python = self._environment.python
        if not python.exists():
            return None
        done = subprocess.run([str(python), "-I", "-c", DATA_DIR], capture_output=True, text=True, cwd=self._root)
        return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None

    def _verb(self) -> list[str]:
        return [str(self._environment.python), "-I", "-m", "backend"]

    def _requirements(self) -> bytes:
        return (self._root / "requirements.txt").read_bytes()


def _json(program: Sequence[str], *words: str) -> Any:
    """What a verb answers on standard output; None where it fails, or has nothing to say."""
    done = subprocess.run(
        [*program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        return json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        return None
