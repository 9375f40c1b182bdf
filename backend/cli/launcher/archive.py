"""Updates from a zip file, for copies without version control: unpacks it, exchanges the files, and rolls back."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from backend.cli.launcher.console import SetupFailed, say
from backend.common.commands import command

USER_FILE = "config.yaml"
EXECUTABLES = ("launch_wsl.sh", ".ci/run")
_VERSION = re.compile(r"""__version__ = ["'](.+?)["']""")


class Archive:
    """An update from a zip file. `backup` is the folder for the files that are replaced."""

    def __init__(self, root: Path, backup: Path, file: Path | None) -> None:
        self._root, self._file = root, file
        self._new, self._old = backup / "new", backup / "files"

    def newer(self) -> str | None:
        """Return a description of the version in the file. Raises SetupFailed if it is not a copy of Touchstone."""
        if self._file is None:
            raise SetupFailed(
                "This copy has no version control, so a newer version cannot be looked up.",
                f"Download the newer version's zip file and name it: {command('update FILE.zip')}",
            )
        try:
            with zipfile.ZipFile(self._file) as zipped:
                top = _top(zipped)
                version = _VERSION.search(zipped.read(f"{top}backend/__init__.py").decode())
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise SetupFailed(
                f"{self._file} is not a zip file of Touchstone ({error}).", "Name the file that you downloaded."
            ) from error
        return f"{version[1] if version else 'the version'} in {self._file.name}"

    def mark(self) -> dict[str, str]:
        """Return what `back` needs in addition to the backup files."""
        return {"kind": "zip"}

    def switch(self) -> None:
        """Replace the files. The user's config.yaml stays; a different new one is stored as config.yaml.new."""
        assert self._file
        self._unpack(self._file)
        self._old.mkdir(parents=True, exist_ok=True)
        for new in sorted(self._new.iterdir()):
            current = self._root / new.name
            if new.name == USER_FILE and current.exists() and current.read_bytes() != new.read_bytes():
                new.replace(self._root / f"{USER_FILE}.new")
                say(f"Your {USER_FILE} is unchanged; that of the newer version is {USER_FILE}.new.")
                continue
            if current.exists():
                current.rename(self._old / new.name)
            new.rename(current)

    def back(self, mark: dict[str, str]) -> None:
        """Restore the files, also after an interrupted exchange."""
        for old in sorted(self._old.iterdir()) if self._old.is_dir() else []:
            current = self._root / old.name
            if current.is_dir() and not current.is_symlink():
                shutil.rmtree(current)
            elif current.exists():
                current.unlink()
            old.rename(current)

    def _unpack(self, file: Path) -> None:
        shutil.rmtree(self._new, ignore_errors=True)
        with zipfile.ZipFile(file) as zipped:
            top = _top(zipped)
            for name in zipped.namelist():
                inner = PurePosixPath(name.removeprefix(top))
                if not name.startswith(top) or name.endswith("/") or ".." in inner.parts or inner.is_absolute():
                    continue
                target = self._new.joinpath(*inner.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(zipped.read(name))
        for program in EXECUTABLES:
            if (self._new / program).exists():
                (self._new / program).chmod(0o755)


def _top(zipped: zipfile.ZipFile) -> str:
    """Return the top folder of the archive, with a slash at its end. Raises KeyError."""
    tail = "backend/cli/launcher/__main__.py"
    tops = [name.removesuffix(tail) for name in zipped.namelist() if name.endswith(tail)]
    if len(tops) != 1:
        raise KeyError("it has no backend/cli/launcher")
    return tops[0]
