"""`update`: installs a newer version, or goes back; keeps models, jobs and settings; proves every device again.

Before anything changes, `.previous` gets what a rollback needs: the old code, the environment if its packages will
change, and a copy of the job history. If the newer version does not start, it is rolled back automatically.
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
from backend.common.commands import command

BACKUP = ".previous"
DATA_DIR = "from backend.common.config.settings import load_settings; print(load_settings({}).data_dir)"


class Source(Protocol):
    """Where a newer version comes from: git, or a zip file."""

    def newer(self) -> str | None: ...
    def mark(self) -> dict[str, str]: ...
    def switch(self) -> None: ...
    def back(self, mark: dict[str, str]) -> None: ...


def update(root: Path, arguments: Sequence[str]) -> int:
    """Run the verb `update` and return the exit code. Raises SetupFailed."""
    parser = argparse.ArgumentParser(
        prog=command("update"), description="Update to a newer version, or go back to the last one."
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE.zip", help="newer version, for copies without version control"
    )
    parser.add_argument("--check", action="store_true", help="only report whether a newer version exists")
    parser.add_argument("--back", action="store_true", help="go back to the version before the last update")
    args = parser.parse_args(arguments)
    with held(root / ".update.lock", lambda: say("Another update is running; waiting for it ...")):
        return _Update(root, args.file).run(args.check, args.back)


class _Update:
    def __init__(self, root: Path, file: Path | None) -> None:
        self._root, self._backup = root, root / BACKUP
        self._environment = Environment(root / ".venv", (root / "requirements.txt",), root / "constraints.txt")
        git = (root / ".git").exists() and file is None
        self._source: Source = Checkout(root) if git else Archive(root, self._backup, file)

    def run(self, check: bool, back: bool) -> int:
        if back:
            return self._go_back()
        newer = self._source.newer()
        if newer is None:
            say("Touchstone is up to date.")
            return 0
        if check:
            say(f"A newer version exists: {newer}. `{command('update')}` installs it; add --back to go back.")
            return 0
        return self._install(newer)

    def _install(self, newer: str) -> int:
        before = self._ready()
        data = self._data()
        running = self._stop()
        self._write_backup(data)
        say(f"Installing {newer} ...")
        requirements = self._requirements()
        try:
            self._source.switch()
        except SetupFailed:
            self._restart(running)
            raise
        if self._requirements() != requirements and self._environment.folder.exists():
            self._environment.folder.rename(self._backup / "venv")  # kept complete, so that a rollback needs no network
        say("Proving every device again ...")
        after = self._ready(by_launcher=True)
        if after is None:
            say("The newer version does not start here; see its messages above. Going back.")
            self._roll_back(data)
            self._restart(running)
            return 1
        self._report(before or [], after)
        self._restart(running)
        return 0

    def _go_back(self) -> int:
        if not (self._backup / "state.json").is_file():
            raise SetupFailed("No earlier version is available.", "`update` keeps one when it installs a newer one.")
        data = self._data()
        running = self._stop()
        self._roll_back(data)
        after = self._ready(by_launcher=True)
        say(f"The earlier version is back. Ready: {', '.join(after or []) or 'no device'}.")
        self._restart(running)
        return 0 if after is not None else 1

    def _write_backup(self, data: Path | None) -> None:
        shutil.rmtree(self._backup, ignore_errors=True)
        self._backup.mkdir()
        if data:
            history.copy(data, self._backup)
            (data / "proofs.json").unlink(missing_ok=True)
        (self._backup / "state.json").write_text(json.dumps(self._source.mark()), encoding="utf-8")

    def _roll_back(self, data: Path | None) -> None:
        mark = json.loads((self._backup / "state.json").read_text(encoding="utf-8"))
        source: Source = Checkout(self._root) if mark["kind"] == "git" else Archive(self._root, self._backup, None)
        source.back(mark)
        if (self._backup / "venv").exists():
            shutil.rmtree(self._environment.folder, ignore_errors=True)
            (self._backup / "venv").rename(self._environment.folder)
        if data and history.restore(data, self._backup):
            say(f"The job history from before the update is back; the newer one is {data / history.NAME}.newer.")
        shutil.rmtree(self._backup)

    def _ready(self, by_launcher: bool = False) -> list[str] | None:
        """Return the ids of the devices that work, by new proofs. Optional: None if that fails.

        `by_launcher`: run the launcher of the current files, which creates or completes the environment.
        """
        if not by_launcher and not self._environment.python.exists():
            return None
        program = [sys.executable, "-I", str(self._root / "backend" / "cli" / "launcher")]
        listing = _run_json(program if by_launcher else self._verb(), "devices", "--json")
        if not isinstance(listing, dict):
            return None
        return [device["id"] for device in listing.get("devices", []) if device.get("state") == "ready"]

    def _report(self, before: list[str], after: list[str]) -> None:
        lost = [id_ for id_ in before if id_ not in after]
        say(f"Updated. Ready: {', '.join(after) or 'no device'}. Models, jobs and settings are unchanged.")
        if lost:
            why, back = command("devices"), command("update --back")
            say(f"No longer ready: {', '.join(lost)}. `{why}` shows why; `{back}` goes back.")

    def _stop(self) -> bool:
        """Stop the server of the data folder; return whether one ran."""
        if not self._environment.python.exists() or not _run_json(self._verb(), "status", "--json"):
            return False
        say("Stopping the running server ...")
        if subprocesses.run([*self._verb(), "stop"]):
            raise SetupFailed("The running server did not end.", "Stop it yourself, then repeat the command.")
        return True

    def _restart(self, running: bool) -> None:
        if running and subprocesses.run([*self._verb(), "start"]):
            say(f"The server did not start again; see above. Retry with `{command('start')}`.")

    def _data(self) -> Path | None:
        """Return the data folder of the settings. Optional: None if it cannot be determined."""
        python = self._environment.python
        if not python.exists():
            return None
        done = subprocess.run([str(python), "-I", "-c", DATA_DIR], capture_output=True, text=True, cwd=self._root)
        return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None

    def _verb(self) -> list[str]:
        return [str(self._environment.python), "-I", "-m", "backend"]

    def _requirements(self) -> bytes:
        return (self._root / "requirements.txt").read_bytes()


def _run_json(program: Sequence[str], *words: str) -> Any:
    """Run a verb and return its JSON output. Optional: None if it fails or prints no JSON."""
    done = subprocess.run(
        [*program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        return json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        return None
