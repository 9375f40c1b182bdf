"""A newer version in a zip file, for copies without version control: unpacked, exchanged, and exchanged back."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from backend.cli.launcher.console import SetupFailed, say

USERS = "config.yaml"
PROGRAMS = ("launch_wsl.sh", ".ci/run")
_VERSION = re.compile(r"""__version__ = ["'](.+?)["']""")


class Archive:
    """The zip file; `aside` is the folder that what is exchanged goes to."""

    def __init__(self, root: Path, aside: Path, file: Path | None) -> None:
        self._root, self._file = root, file
        self._new, self._old = aside / "new", aside / "files"

    def newer(self) -> str | None:
        """The version inside, in words. Raises SetupFailed if the file is no Touchstone."""
        if self._file is None:
            raise SetupFailed(
                "This copy has no version control, so there is nowhere to ask for a newer version.",
                "Fetch the newer version's zip file yourself and name it: update FILE.zip",
            )
        try:
            with zipfile.ZipFile(self._file) as zipped:
                top = _top(zipped)
                found = _VERSION.search(zipped.read(f"{top}backend/__init__.py").decode())
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise SetupFailed(
                f"{self._file} is no zip file of Touchstone ({error}).", "Name the file that was downloaded, whole."
            ) from error
        return f"{found[1] if found else 'the version'} in {self._file.name}"

    def mark(self) -> dict[str, str]:
        """What `back` needs, beside the files that were put aside."""
        return {"kind": "zip"}

    def switch(self) -> None:
        """Exchanges the files. The user's config.yaml stays; a different new one lies beside it."""
        assert self._file
        self._unpack(self._file)
        self._old.mkdir(parents=True, exist_ok=True)
        for new in sorted(self._new.iterdir()):
            ours = self._root / new.name
            if new.name == USERS and ours.exists() and ours.read_bytes() != new.read_bytes():
                new.replace(self._root / f"{USERS}.new")
                say(f"Your {USERS} stays as it is; the newer version's lies beside it as {USERS}.new.")
                continue
            if ours.exists():
                ours.rename(self._old / new.name)
            new.rename(ours)

    def back(self, mark: dict[str, str]) -> None:
        """Exchanges them back, also after an exchange that was cut off."""
        for old in sorted(self._old.iterdir()) if self._old.is_dir() else []:
            ours = self._root / old.name
            if ours.is_dir() and not ours.is_symlink():
                shutil.rmtree(ours)
            elif ours.exists():
                ours.unlink()
            old.rename(ours)

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
        for program in PROGRAMS:
            if (self._new / program).exists():
                (self._new / program).chmod(0o755)


def _top(zipped: zipfile.ZipFile) -> str:
    """The folder inside the archive that holds everything, with its slash. Raises KeyError."""
    tail = "backend/cli/launcher/__main__.py"
    tops = [name.removesuffix(tail) for name in zipped.namelist() if name.endswith(tail)]
    if len(tops) != 1:
        raise KeyError("it holds no backend/cli/launcher")
    return tops[0]
