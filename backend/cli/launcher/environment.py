"""A virtual environment that is complete or recreated. Its stamp file records the requirements that it satisfies."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.cli.launcher import subprocesses
from backend.cli.launcher.checkout_dir import refuse_unusable
from backend.cli.launcher.console import SetupFailed, say
from backend.cli.launcher.interpreter import find_missing_packages
from backend.cli.launcher.lock import held
from backend.cli.launcher.packages import InstallFailed, install

STAMP = "touchstone.json"
INCOMPLETE = {"state": "making"}
NOT_A_PACKAGE = re.compile(r".*\.(dist-info|pth|egg-info|virtualenv)$|(pip|setuptools|wheel|pkg_resources|_.*|~.*)$")


@dataclass(frozen=True)
class Environment:
    """An environment's folder, and the requirement files that it satisfies.

    `constraints`: optional, a file with the versions to install; it may be missing.
    """

    folder: Path
    requirements: tuple[Path, ...]
    constraints: Path | None = None

    @property
    def python(self) -> Path:
        """Its interpreter's path."""
        return self.folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    def ensure(self) -> Path:
        """Create or complete the environment if necessary; return its interpreter's path. Raises SetupFailed."""
        if not self._is_current():
            lock = self.folder.with_name(self.folder.name + ".lock")
            waiting = f"Another launcher is preparing {self.folder.name}; waiting for it ..."
            with held(lock, lambda: say(waiting)):
                if not self._is_current():  # another launcher may have created it meanwhile
                    self._create_or_complete()
        return self.python

    def _is_current(self) -> bool:
        stamp = self._stamp()
        fits = stamp.get("state") == "ready" and stamp.get("requirements") == self._digest()
        return fits and not self._missing(stamp) and self._version() == stamp["python"]

    def _create_or_complete(self) -> None:
        before = self._stamp()
        self._digest()  # raises FileNotFoundError before anything is created
        self._refuse_foreign()
        self._discard_unusable(before)
        if not self.folder.exists() or not any(self.folder.iterdir()):
            self._create()
        elif not before and not self._can_be_adopted():
            raise SetupFailed(
                f"{self.folder} exists, was not created by this launcher, and has no Python 3.11 to 3.14 with pip.",
                "Rename or remove that folder and start again.",
            )
        self._write_stamp(INCOMPLETE)
        files = " and ".join(str(file.relative_to(self.folder.parent)) for file in self.requirements)
        say(f"Installing the packages of {files}; this takes a minute or two ...")
        try:
            install(self.python, self.requirements, self._constraints())
        except InstallFailed as error:
            if error.early and before:
                self._write_stamp(before)  # unchanged: an older requirements.txt still matches
            raise
        if not self._entries(self._version()):
            raise SetupFailed(
                f"pip reported success but installed no package into {self.folder}.",
                "Remove `target`, `prefix` and `root` from pip's configuration (`pip config list`), and start again.",
            )
        self._add_repository_path()
        self._write_stamp(self._finished(self._version()))

    def _refuse_foreign(self) -> None:
        """Raises SetupFailed for a file or an environment that the launcher must not remove."""
        if self.folder.exists() and not self.folder.is_dir():
            raise SetupFailed(f"{self.folder} is a file, but the environment needs that name.", "Rename or remove it.")
        if self._holds_another_system():
            raise SetupFailed(
                f"{self.folder} was created by {'WSL or Linux' if sys.platform == 'win32' else 'Windows'}.",
                "A folder works for one system only: use a second copy of the repository here (in WSL on its own disk, "
                "which is also faster).",
            )

    def _discard_unusable(self, before: Mapping[str, Any]) -> None:
        if self.folder.is_symlink() and not self.folder.exists():
            self.folder.unlink()  # its target was deleted
        elif missing := self._missing(before):
            say(f"{self.folder.name} has lost packages ({', '.join(missing[:3])}); recreating it.")
            self._discard()
        elif before == INCOMPLETE or (before and self._version() != before["python"]):
            say(f"{self.folder.name} is unusable after an interrupted start or a change of Python; recreating it.")
            self._discard()

    def _create(self) -> None:
        refuse_unusable(self.folder.parent)
        say(f"Creating {self.folder} with Python {sys.version.split()[0]} ...")
        self.folder.mkdir(exist_ok=True)
        self._write_stamp(INCOMPLETE)  # first, so that the next run recognizes an interrupted one
        command = [sys.executable, "-I", "-m", "venv", str(self.folder)]
        if subprocesses.run(command):
            raise SetupFailed(
                "No virtual environment could be created; see the messages above.",
                "Install python3-venv on Debian or Ubuntu, elsewhere a complete Python 3.11 to 3.14, and start again.",
            )

    def _discard(self) -> None:
        if self.folder.is_symlink():
            self.folder.unlink()
            return
        doomed = self.folder.with_name(self.folder.name + ".old")  # renamed first: removing is not atomic
        shutil.rmtree(doomed, ignore_errors=True)
        self.folder.rename(doomed)
        shutil.rmtree(doomed)

    def _add_repository_path(self) -> None:
        """Let `python -I -m backend` find the package from any folder, by a relative path, which survives a move."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.check_output([str(self.python), "-I", "-c", code], text=True).strip())
        relative = os.path.relpath(self.folder.parent, packages.resolve())
        (packages / "touchstone.pth").write_text(relative + "\n", encoding="utf-8")

    def _finished(self, python: str | None) -> dict[str, Any]:
        return {
            "state": "ready",
            "requirements": self._digest(),
            "python": python,
            "packages": sorted(self._entries(python)),
        }

    def _digest(self) -> str:
        files = [*self.requirements, *self._constraints()]
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()

    def _constraints(self) -> list[Path]:
        return [self.constraints] if self.constraints and self.constraints.is_file() else []

    def _missing(self, stamp: Mapping[str, Any]) -> list[str]:
        """Return installed modules that are now missing, for example after a cleanup by the user."""
        return sorted(set(stamp.get("packages", ())) - self._entries(stamp.get("python")))

    def _entries(self, python: str | None) -> set[str]:
        """Return the installed modules without pip's own. Versions do not count, so the user may update packages."""
        folder = "Lib" if sys.platform == "win32" else f"lib/python{python}"
        try:
            names = {entry.name for entry in (self.folder / folder / "site-packages").iterdir()}
        except OSError:
            return set()
        return {name for name in names if not NOT_A_PACKAGE.match(name)}

    def _stamp(self) -> dict[str, Any]:
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return INCOMPLETE
        return stamp if isinstance(stamp, dict) and ("python" in stamp or stamp == INCOMPLETE) else INCOMPLETE

    def _write_stamp(self, stamp: dict[str, Any]) -> None:
        fresh = self.folder / (STAMP + ".new")
        fresh.write_text(json.dumps(stamp) + "\n", encoding="utf-8")
        fresh.replace(self.folder / STAMP)

    def _version(self) -> str | None:
        """Return X.Y of the environment's interpreter. Optional: None if it does not run, as after a system upgrade."""
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        return self._run_python("-S", "-c", code)

    def _can_be_adopted(self) -> bool:
        version = self._version()
        if version is None:
            return False
        major, minor = map(int, version.split("."))
        return not find_missing_packages((major, minor)) and self._run_python("-m", "pip", "--version") is not None

    def _run_python(self, *arguments: str) -> str | None:
        try:
            run = subprocess.run([str(self.python), "-I", *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return run.stdout.strip()

    def _holds_another_system(self) -> bool:
        return (self.folder / ("bin" if sys.platform == "win32" else "Scripts")).is_dir()
